"""What `03.shard-indices` must show: equal shares of all samples, in an order every rank can work out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random
from types import ModuleType

import numpy as np
import torch

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run
from labkit.checks.lesson_03.net import TORCHS_OWN
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.beside import calls_of, calls_text, refused

GLOBAL_SEED = 7  # of torch's own generator, which is to be left alone
DRAWN_BEFORE = 3  # numbers that it has given by then
ASKED = {"a": (0, 3), "b": (1, 3), "c": (0, 4), "zero": (0, 0), "again": (0, 3)}  # epoch, seed
SHOWN = 8  # samples of an order
MANY = 16  # samples: of so many, two orders are not the same turned round by chance
FEW = range(2, MANY)  # samples: two orders may be the same by chance, but not all of TRIED
TRIED = range(40)  # epochs, and seeds
THOUSANDS = 1000  # samples: of so many, each part of the order has some of each part of the samples
PARTS = 5
EPOCHS = (*range(12), 64, 100, 128, 1000, 1024, 10_000)  # some are far on
FEW_EPOCHS = (0, 1, 2, 3, 64, 1000)  # where the orders are long
FAR_SEEDS = range(1000, 100_000)
# Apart by powers of two, which leave the 32 bits that a generator takes when the epoch stands below them.
ENDS = (0, 2**16, 2**24, 2**31, 2**32 - 1)


def indices_case(name: str, samples: int, world: int, seed: int, kind: str = "values") -> Case:
    """Indices of all ranks of a world, asked for in one process."""
    return Case(name, 1, {"samples": samples, "world": world}, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    return [
        indices_case("24 samples on 4 ranks", 24, 4, seed),
        indices_case("23 samples on 4 ranks", 23, 4, seed),
        indices_case("3 samples on 5 ranks", 3, 5, seed),
        indices_case("17 samples on 1 rank", 17, 1, seed),
        indices_case("no samples", 0, 3, seed),
        indices_case("ranks that cannot be", 8, 2, seed, "refused"),
    ]


def _ask_for_shares(rank: Rank) -> None:
    """Facts: the shares of all ranks and the kinds of these and of their elements, for each of ASKED; alone,
    all that a rank without others reads; epochs, the same of many, by seed; far seeds, the same of some; few,
    `_orders_of_few`; elsewhere, the shares that another process finds; after use, those that are found when
    the lists of before were emptied; disturbed, other generators than torch's that are not as they were.
    Answer: random.
    """
    n, world, ask = rank.params["samples"], rank.params["world"], rank.student.shard_indices
    seed_generators(GLOBAL_SEED)
    torch.rand(DRAWN_BEFORE)
    others = _others_generators()
    for name, (epoch, seed) in ASKED.items():
        with rank.recording(name):
            shares = [ask(n, r, world, epoch, seed) for r in range(world)]
        rank.fact(f"containers of {name}", sorted({type(share).__name__ for share in shares}))
        shares = [list(share) for share in shares]
        rank.fact(name, [[int(i) for i in share] for share in shares])
        rank.fact(f"kinds of {name}", sorted({type(i).__name__ for share in shares for i in share}))
    rank.answer("random", torch.rand(2))
    rank.fact("disturbed", [name for name, state in _others_generators().items() if state != others[name]])
    if n in FEW:
        rank.fact("few", _orders_of_few(rank))
    rank.fact("alone", [int(i) for i in ask(n, 0, 1, *ASKED["a"])])
    for seed in _seeds(n):
        orders = [[int(i) for i in ask(n, 0, 1, epoch, seed)] for epoch in _epochs(n)]
        rank.fact(f"epochs, seed {seed}", orders)
    with rank.attempt("shuffled"):
        rank.fact("far seeds", [[int(i) for i in ask(n, 0, 1, 0, seed)] for seed in _far_seeds(rank.case)])
    with _texts_hash_otherwise(rank.student):
        _seed_otherwise()
        rank.fact("elsewhere", [[int(i) for i in ask(n, r, world, *ASKED["a"])] for r in range(world)])
    for r in range(world):
        _use_up(ask(n, r, world, *ASKED["a"]))
    rank.fact("after use", [[int(i) for i in ask(n, r, world, *ASKED["a"])] for r in range(world)])


def _others_generators() -> dict[str, JSON]:
    """The states of the generators that everybody uses, beside torch's, in words that tell them apart."""
    return {"Python's": repr(random.getstate()), "NumPy's": repr(np.random.get_state())}


def _seed_otherwise() -> None:
    """As in another process, which has done other things before."""
    seed_generators(GLOBAL_SEED + 1)
    random.seed(GLOBAL_SEED + 1)
    np.random.seed(GLOBAL_SEED + 1)


def _orders_of_few(rank: Rank) -> dict[str, JSON]:
    """What all ranks read together: in each of TRIED epochs of one seed or two, and for as many seeds."""
    n, world, ask = rank.params["samples"], rank.params["world"], rank.student.shard_indices

    def read(epoch: int, seed: int) -> list[int]:
        return [int(i) for r in range(world) for i in ask(n, r, world, epoch, seed)]

    of_epochs = {f"epochs of seed {seed}": [read(epoch, seed) for epoch in TRIED] for seed in _seeds(n)}
    return of_epochs | {"seeds": [read(0, seed) for seed in TRIED]}


def _epochs(samples: int) -> tuple[int, ...]:
    return FEW_EPOCHS if samples >= THOUSANDS else EPOCHS


def _seeds(samples: int) -> tuple[int, ...]:
    """The seeds whose epochs are asked for: 0 is one like any other. One alone where the orders are long."""
    seed = ASKED["a"][1]
    return (seed,) if samples >= THOUSANDS else (seed, 0)


def _far_seeds(case: Case) -> list[int]:
    """Large ones, next to each other and apart; where the orders are not long, those of ENDS too."""
    ends = ENDS if case.params["samples"] < THOUSANDS else ()
    first, *others = Random(f"far seeds/{case.seed}").sample(FAR_SEEDS, 3)
    return [FAR_SEEDS.start, first, first + 1, *others, *ends]


def _use_up(share: Sequence[int]) -> None:
    """Empty a list, as its reader may do with what it was given."""
    if isinstance(share, list):
        share.clear()


@contextmanager
def _texts_hash_otherwise(student: ModuleType) -> Iterator[None]:
    """Inside, the student's `hash` gives other numbers for texts, and for tuples with texts, as in a process
    that was started by itself. Ranks here are forked from one process, where texts hash alike.
    """
    if "hash" in vars(student):  # a function of the student's own
        yield
        return
    vars(student)["hash"] = lambda thing: hash(("elsewhere", thing) if _is_salted(thing) else thing)
    try:
        yield
    finally:
        del vars(student)["hash"]


def _is_salted(thing: object) -> bool:
    """Whether Python hashes this differently in each process."""
    return isinstance(thing, str | bytes) or (
        isinstance(thing, tuple | frozenset) and any(map(_is_salted, thing))
    )


def _outside(case: Case) -> list[tuple[int, int]]:
    """Ranks and worlds that cannot be."""
    world = case.params["world"]
    return [(world, world), (-1, world), (0, 0)]


def _ask_from_outside(rank: Rank) -> None:
    for r, world in _outside(rank.case):
        with rank.expect_error(f"rank {r} of {world}"):
            rank.student.shard_indices(rank.params["samples"], r, world, 0, 0)


# -- judges


def _partitions(evidence: Evidence) -> Iterator[tuple[list[list[int]], int, int]]:
    """The shares of an epoch and seed, the number of samples, and how many each rank should have."""
    n, world = evidence.case.params["samples"], evidence.case.params["world"]
    for name in ("a", "b", "c", "zero"):
        yield evidence.answers[0].facts[name], n, -(-n // world)


def _shares_are_equal(evidence: Evidence) -> Iterator[Finding]:
    for shares, _, each in _partitions(evidence):
        lengths = [len(share) for share in shares]
        right = lengths == [each] * evidence.case.params["world"]
        yield Finding(right, f"{each} samples on every rank", f"{lengths}")
    for name, (epoch, seed) in ASKED.items():
        containers, kinds = (evidence.answers[0].facts[f"{of} of {name}"] for of in ("containers", "kinds"))
        told = f"as list[int] says, in epoch {epoch} of seed {seed}"
        seen = " or ".join(f"a {kind}" for kind in containers)
        yield Finding(containers == ["list"], f"a list, no generator, {told}", seen)
        yield Finding(kinds in (["int"], []), f"plain ints, {told}", f"{', '.join(kinds)}")


def _all_are_visited(evidence: Evidence) -> Iterator[Finding]:
    for shares, n, each in _partitions(evidence):
        counts = Counter(i for share in shares for i in share)
        missing = [i for i in range(n) if not counts[i]]
        yield Finding(not missing, f"all of 0..{n - 1}", f"missing: {missing[:6]}")
        foreign = sorted(i for i in counts if not 0 <= i < n)
        yield Finding(not foreign, f"indices from 0 to {n - 1}", f"found {foreign[:6]}")
        most = -(-len(shares) * each // n) if n else 0
        often = [i for i in range(n) if counts[i] > most]
        yield Finding(not often, f"no sample more than {most} times", f"too often: {often[:6]}")
    repeats = {tuple(_same_before(shares)) for shares, _, _ in _partitions(evidence)}
    told = "the filling-up starts over from the front: the same places repeat in every order"
    yield Finding(len(repeats) == 1, told, "other places repeat in another epoch or with another seed")
    shares, order = evidence.answers[0].facts["a"], evidence.answers[0].facts["alone"]
    twice = sorted((Counter(i for share in shares for i in share) - Counter(range(n))).elements())
    told = f"the filling-up is the front of the shuffled order, {order[:SHOWN]} on one rank"
    yield Finding(_starts_over(shares, order), told, f"read once more: {twice[:SHOWN]}")


def _starts_over(shares: list[list[int]], order: list[int]) -> bool:
    """Whether shares are filled up from the front of the order that they were dealt from: in turns, in
    blocks, or in another way from the order that a rank without others reads.
    """
    n = len(order)
    in_turns = [i for turn in zip(*shares, strict=False) for i in turn]
    in_blocks = [i for share in shares for i in share]
    repeats = any(flat[n:] == flat[: max(len(flat) - n, 0)] for flat in (in_turns, in_blocks))
    filled = [order[place % n] for place in range(len(in_blocks))] if n else []
    return repeats or sorted(filled) == sorted(in_blocks)


def _same_before(shares: list[list[int]]) -> list[int]:
    """For each place in the shares, one behind the other, the first that has its sample."""
    first: dict[int, int] = {}
    return [first.setdefault(i, place) for place, i in enumerate(i for share in shares for i in share)]


def _are_shuffled(evidence: Evidence) -> Iterator[Finding]:
    facts, n = evidence.answers[0].facts, evidence.case.params["samples"]
    if n in FEW:
        for what, orders in facts["few"].items():
            told = f"{n} samples are shuffled too: not one order for {len(TRIED)} {what}"
            yield Finding(any(order != orders[0] for order in orders), told, f"always {orders[0]}")
    if n < MANY:
        return
    one, next_epoch, other_seed = ([i for share in facts[name] for i in share] for name in ("a", "b", "c"))
    yield Finding(one != next_epoch, "another order in the next epoch", "the same order")
    yield Finding(one != other_seed, "another order for another seed", "the same order")
    mixed = not _rises(facts["a"][0]) and sorted(one[: n // 2]) != list(range(n // 2))
    yield Finding(mixed, "shuffled over all samples", f"rank 0 has {facts['a'][0][:8]}")
    for seed in _seeds(n):
        orders = zip(_epochs(n), facts[f"epochs, seed {seed}"], strict=True)
        alike = [f"{a} and {b}" for (a, x), (b, y) in combinations(orders, 2) if _turned(x, y)]
        told = f"an order of its own in each epoch of seed {seed}, not one begun elsewhere"
        yield Finding(not alike, told, f"the same: epochs {', '.join(alike[:3])}")
    if "far seeds" in facts:  # an error there is told by itself
        orders = zip(_far_seeds(evidence.case), facts["far seeds"], strict=True)
        alike = [f"{a} and {b}" for (a, x), (b, y) in combinations(orders, 2) if x == y]
        yield Finding(
            not alike, "an order of its own for each seed", f"the same: seeds {', '.join(alike[:3])}"
        )
    if evidence.case.params["world"] > 1:
        kept = all(set(one) == set(other) for one, other in zip(facts["a"], facts["b"], strict=True))
        told = "a rank reads other samples in the next epoch"
        yield Finding(not kept, told, "every rank the same ones, in another order")
    if n >= THOUSANDS:
        yield _parts_are_mixed(facts["alone"])


def _parts_are_mixed(order: Sequence[int]) -> Finding:
    """Each part of the order has samples of each part of the data."""
    size = max(1, -(-len(order) // PARTS))
    seen = [len({i // size for i in order[first : first + size]}) for first in range(0, len(order), size)]
    told = f"each fifth of the order with samples from all {PARTS} fifths of the data"
    return Finding(seen == [PARTS] * PARTS, told, f"from {', '.join(map(str, seen))} of them")


def _turned(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether the one is the other, begun at another place."""
    if not one or one[0] not in other:
        return list(one) == list(other)
    begin = other.index(one[0])
    return list(one) == [*other[begin:], *other[:begin]]


def _rises(share: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(share))


def _same_everywhere(evidence: Evidence) -> Iterator[Finding]:
    answer = evidence.answers[0]
    seed_generators(GLOBAL_SEED)
    torch.rand(DRAWN_BEFORE)
    untouched = torch.equal(torch.rand(2), answer.tensors["random"])
    yield Finding(untouched, "torch's global generator is left alone", "it was seeded, or drawn from")
    disturbed = " and ".join(answer.facts["disturbed"])
    yield Finding(not disturbed, "Python's and NumPy's are left alone too", f"{disturbed} were not")
    again = answer.facts["a"] == answer.facts["again"]
    yield Finding(again, "the same for the same epoch and seed", "another order")
    elsewhere = answer.facts["a"] == answer.facts["elsewhere"]
    yield Finding(
        elsewhere,
        "the same in another process, where texts have another hash() and global generators another state",
        "another order",
    )
    used = answer.facts["a"] == answer.facts["after use"]
    told = "the same again after the lists of the first time were emptied by whoever had asked for them"
    yield Finding(used, told, "other samples")
    calls = [call for name in ASKED for call in calls_of(answer, name)]
    yield Finding(not calls, "no communication: every rank can work it out", calls_text(calls))


def _outside_is_refused(evidence: Evidence) -> Iterator[Finding]:
    for r, world in _outside(evidence.case):
        found = refused(f"rank {r} of {world}", ["ValueError"], evidence.answers[0])
        yield replace(found, expected=f"{found.expected} for rank {r} of {world}")


EXERCISE = Exercise(
    "03.shard-indices",
    "Who reads what",
    ("shard_indices",),
    {"values": Run(_ask_for_shares), "refused": Run(_ask_from_outside)},
    _cases,
    (
        Property(
            "equal-shares",
            "numbers",
            2,
            "Every rank gets the same number of samples, as a list of ints",
            "n // world_size drops the rest: fill up by starting over; a tensor needs .tolist()",
            {"values": _shares_are_equal},
        ),
        Property(
            "every-sample",
            "numbers",
            3,
            "Together the ranks visit every sample, and only the filling-up twice",
            "each rank shuffled on its own, so shares overlap",
            {"values": _all_are_visited},
        ),
        Property(
            "shuffled",
            "mechanism",
            2,
            "The order changes with the epoch and the seed",
            "the epoch is not part of the generator's seed",
            {"values": _are_shuffled},
        ),
        Property(
            "reproducible",
            "mechanism",
            2,
            "The same epoch and seed give the same order everywhere, silently, with a generator of your own",
            "use a torch.Generator of your own",
            {"values": _same_everywhere},
        ),
        Property(
            "wrong-rank",
            "robustness",
            1,
            "A rank outside the world raises a ValueError",
            "-1 is an index to Python, and rank == world_size a share that is empty",
            on={"refused": _outside_is_refused},
        ),
    ),
    forbids=TORCHS_OWN,
)
