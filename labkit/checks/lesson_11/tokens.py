"""What a fair cut of a causal sequence must show: who has which tokens, and which blocks that makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

from torch import Tensor

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import refused

Pair = tuple[int, int, bool]  # half of the queries, half of the keys, whether it is on the diagonal


def cut_case(name: str, kind: str, settings: Sequence[tuple[int, int]], seed: int) -> Case:
    """settings: (tokens of the sequence, ranks)."""
    return Case(name, 1, {"settings": [list(s) for s in settings]}, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    return [
        cut_case("a few ranks", "cut", [(8, 2), (24, 3), (32, 4), (6, 1)], seed),
        cut_case("which blocks", "blocks", [(8, 2), (24, 3), (32, 4), (6, 1)], seed),
        cut_case("halves that do not divide", "refused", [(12, 4)], seed),
        cut_case("shares that do not divide, of an even number", "refused", [(10, 4)], seed),
        cut_case("one rank, and an odd number", "refused", [(7, 1)], seed),
    ]


def zigzag(sequence: int, rank: int, ranks: int) -> list[int]:
    """Positions of the rank's two chunks of 2n: one from the front, one as far from the end."""
    size = sequence // (2 * ranks)
    return [chunk * size + i for chunk in chunks_of(rank, ranks) for i in range(size)]


def chunks_of(rank: int, ranks: int) -> tuple[int, int]:
    """The numbers of a rank's two chunks."""
    return rank, 2 * ranks - 1 - rank


def pairs_of(rank: int, source: int, ranks: int) -> list[Pair]:
    """The pairs of halves in which some query of `rank` sees some key of `source`."""
    mine, theirs = chunks_of(rank, ranks), chunks_of(source, ranks)
    return [(i, j, a == b) for i, a in enumerate(mine) for j, b in enumerate(theirs) if b <= a]


def _cut(rank: Rank) -> None:
    """Facts own: for each setting every rank's positions; pairs: for each, [rank][source]; others: what came
    where a list was asked for, or in it, in words.
    """
    student, owned, pairs, others = rank.student, [], [], set[str]()
    for sequence, ranks in rank.params["settings"]:
        if rank.case.kind == "cut":
            found = [student.own_tokens(sequence, r, ranks) for r in range(ranks)]
            others |= _no_lists(found, _no_index)
            owned.append([[int(p) for p in positions] for positions in found])
        else:
            pairs.append([_pairs_of(student, r, ranks, others) for r in range(ranks)])
    rank.fact("own", owned)
    rank.fact("pairs", pairs)
    rank.fact("others", sorted(others))


def _pairs_of(student: Any, rank: int, ranks: int, others: set[str]) -> list[JSON]:
    """What a rank computes with the keys of each source."""
    found = [student.block_pairs(rank, source, ranks) for source in range(ranks)]
    others |= _no_lists(found, _no_pair)
    return [sorted([int(i), int(j), bool(diagonal)] for i, j, diagonal in pairs) for pairs in found]


def _no_lists(found: Iterable[Any], wrong: Callable[[Any], str]) -> set[str]:
    """What is no list, by its type, and what is wrong in lists."""
    others = {f"a {type(these).__name__}" for these in found if not isinstance(these, list)}
    inside = {wrong(item) for these in found if isinstance(these, list) for item in these}
    return others | {f"a list with {told} in it" for told in inside if told}


def _no_index(number: Any) -> str:
    """In words what is no whole number; a tensor with one in it is none."""
    right = isinstance(number, SupportsIndex) and not isinstance(number, Tensor)
    return "" if right else f"a {type(number).__name__}"


def _no_pair(pair: Any) -> str:
    """In words what are no two halves with a yes or a no, which 1 and 0 are too."""
    if not isinstance(pair, tuple | list):
        return f"a {type(pair).__name__}"
    *halves, diagonal = pair
    wrong = next(filter(None, map(_no_index, halves)), "")
    return wrong or ("" if diagonal == bool(diagonal) else f"{diagonal!r} for yes or no")


def _refuse(rank: Rank) -> None:
    ((sequence, ranks),) = rank.params["settings"]
    for asked in range(ranks):
        with rank.expect_error(f"refusal {asked}"):
            rank.student.own_tokens(sequence, asked, ranks)


def _every_token_once(evidence: Evidence) -> Iterator[Finding]:
    for (sequence, ranks), owned in _settings(evidence, "own"):
        everything = sorted(p for positions in owned for p in positions)
        told = f"{sequence} tokens on {ranks} ranks: each on one of them, {sequence // ranks} on each"
        right = everything == list(range(sequence)) and {len(p) for p in owned} == {sequence // ranks}
        yield Finding(right, told, f"{owned}"[:200])


def _zigzag(evidence: Evidence) -> Iterator[Finding]:
    for (sequence, ranks), owned in _settings(evidence, "own"):
        for rank, positions in enumerate(owned):
            expected = zigzag(sequence, rank, ranks)
            told = f"rank {rank} of {ranks} has tokens {expected}"
            yield Finding(positions == expected, told, f"tokens {positions}"[:200])
    yield from _are_lists(evidence, "whole numbers")


def _pairs(evidence: Evidence) -> Iterator[Finding]:
    for (_, ranks), found in _settings(evidence, "pairs"):
        for rank in range(ranks):
            for source in range(ranks):
                expected = sorted(map(list, pairs_of(rank, source, ranks)))
                told = f"rank {rank} with the keys of rank {source}, of {ranks}: {expected}"
                yield Finding(found[rank][source] == expected, told, f"{found[rank][source]}")
    yield from _are_lists(evidence, "(half, half, whether they are the same)")


def _are_lists(evidence: Evidence, of: str) -> Iterator[Finding]:
    others = evidence.answers[0].facts["others"]
    yield Finding(not others, f"a list of {of}", ", ".join(others)[:200])


def _refused(evidence: Evidence) -> Iterator[Finding]:
    ((sequence, ranks),) = evidence.case.params["settings"]
    for answer in evidence.answers:
        for asked in range(ranks):
            found = refused(f"refusal {asked}", ["ValueError"], answer, (sequence, ranks))
            yield replace(found, expected=f"{found.expected}, for rank {asked}")


def _fair(evidence: Evidence) -> Iterator[Finding]:
    for (_, ranks), found in _settings(evidence, "pairs"):
        work = [sum(len(pairs) for pairs in own) for own in found]
        told = f"{2 * ranks + 1} blocks on each of {ranks} ranks"
        yield Finding(set(work) == {2 * ranks + 1}, told, f"{work}")


def _settings(evidence: Evidence, fact: str) -> Iterator[tuple[tuple[int, int], Any]]:
    return zip(evidence.case.params["settings"], evidence.answers[0].facts[fact], strict=True)


CUT = Run(_cut)
EXERCISE = Exercise(
    "11.own-tokens",
    "A fair cut",
    ("own_tokens", "block_pairs"),
    {"cut": CUT, "blocks": CUT, "refused": Run(_refuse)},
    _cases,
    (
        Property(
            "every-token",
            "numbers",
            1,
            "Every token is on one rank, and every rank has as many.",
            "the middle chunk is given out twice, or the ranks' pieces are not of one length",
            {"cut": _every_token_once},
        ),
        Property(
            "zigzag",
            "numbers",
            2,
            "Rank r has chunk r of 2n, and then chunk 2n - 1 - r.",
            "the second chunk is counted from the end",
            {"cut": _zigzag},
        ),
        Property(
            "pairs",
            "numbers",
            2,
            "Pairs of halves are computed where some key is seen; those of one chunk are diagonal.",
            "halves of two ranks are compared by their chunks' numbers",
            {"blocks": _pairs},
        ),
        Property(
            "fair",
            "mechanism",
            1,
            "Every rank computes 2n + 1 blocks.",
            "contiguous pieces give the last rank most of the work",
            {"blocks": _fair},
        ),
        Property(
            "refused",
            "robustness",
            1,
            "A sequence that 2n chunks do not divide is a ValueError that names it and the ranks.",
            "2n chunks must divide it, not n, and no rank goes on without the others",
            {"refused": _refused},
        ),
    ),
)
