"""What `07.initial-weights` must show: what each rank draws for itself, and what all draw alike."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_07.modules import PAIRS, case_maker, subgroup
from labkit.checks.lesson_07.streams import STREAMS_ID
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.beside import calls_are, refused, same
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.worked import Worked

INITIAL_ID = "07.initial-weights"
CUT: dict[str, int | None] = {"cut along dim 0": 0, "cut along dim 1": 1}
WHOLE: dict[str, int | None] = {"whole": None}
ALIKE = 0.1  # a correlation of two blocks; by chance less than 0.01, of the same numbers 1
TAILS = 0.5  # of the fourth moment; by chance less than 0.2, by uniform numbers 1.2
FARTHEST = 3.25  # standard deviations; by chance some 28 of a block's numbers are farther from 0
UNIQUE = 0.9  # of a block's numbers; by chance 0.99 in float32
TOGETHER = 0.5  # of the usual products of two lines; by chance less than 0.1 off, in orthogonal lines 1
MOST_ALIKE = 0.9  # a correlation of two lines; by chance less than 0.7, of the same numbers 1
MOST_PARTS = 2.5  # parts of a weight in one tensor: some draw two numbers for each that they want
TOO_CLOSE = 1e-5  # of mean and deviation, for all of a rank's weights; by chance 1 in 100,000 for one alone
OFF = 0.04  # of the standard deviation; by chance less than 0.007, by a block's fan-in at least 0.4
initial_case = case_maker(shape=[256, 384])  # default: torch's default type, where it is not float32


def _cases(seed: int) -> list[Case]:
    return [
        initial_case("two ranks", "values", 2, seed),
        initial_case("four ranks", "values", 4, seed),
        initial_case("254 rows", "uneven", 4, seed, shape=[254, 384]),
        initial_case("382 columns", "uneven", 4, seed, shape=[256, 382]),
        initial_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
        initial_case("with your own streams", "own-parts", 2, seed),
    ]


def _twice(names: dict[str, int | None]) -> dict[str, int | None]:
    """Each weight is drawn a second time."""
    return names | {f"{name}, again": cut for name, cut in names.items()}


DRAWN = _twice(CUT | WHOLE)


def _draw_weights(rank: Rank) -> None:
    """Draw cut and whole weights, two of each kind. Answers: the names in DRAWN. Recording: all. Facts: most
    and a name, elements of the largest tensor that was made for it, or is behind it.

    Torch's own generator is alike on the ranks where a weight is cut, and differs where it is whole, so that
    drawing from it instead of the streams shows.
    """
    group, shape = enter_group(rank), tuple(rank.params["shape"])
    streams = rank.student.RandomStreams(rank.case.seed, group)
    with rank.recording("all"), _default_type(_type_of(rank.case)):
        for number, (name, cut) in enumerate(DRAWN.items()):
            seed_generators(number if cut is not None else 100 * (1 + rank.rank) + number)
            with Worked() as worked:
                part = rank.student.initial_weight(shape, cut, streams, group)
            behind = part.untyped_storage().nbytes() // part.element_size()
            rank.fact(f"most {name}", max(worked.largest, behind))
            rank.answer(name, part)


def _type_of(case: Case) -> torch.dtype:
    """Torch's default type in the case."""
    found = getattr(torch, case.params.get("default", "float32"))
    assert isinstance(found, torch.dtype)
    return found


@contextlib.contextmanager
def _default_type(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _ask_for_uneven(rank: Rank) -> None:
    """Ask for each weight once. Answers: those that can be made. Facts: the errors met with the others."""
    group, shape = enter_group(rank), tuple(rank.params["shape"])
    streams = rank.student.RandomStreams(rank.case.seed, group)
    for name, cut in (CUT | WHOLE).items():
        with rank.expect_error(name):
            rank.answer(name, rank.student.initial_weight(shape, cut, streams, group))


# -- judges


def _parts(names: dict[str, int | None]) -> Judge:
    """What a rank drew under these names has the shape of its part."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            for name in names:
                wanted, seen = _shape(evidence.case, name, answer), _seen_shape(answer, name)
                told = f"{name}: this rank's part, {wanted}"
                yield Finding(seen == wanted, told, f"{seen}", answer.rank)

    return judge


def _shape(case: Case, name: str, answer: RankAnswer) -> list[int]:
    size, cut = place_of(case, answer.rank).size, DRAWN[name]
    return [n // size if dim == cut else n for dim, n in enumerate(case.params["shape"])]


def _seen_shape(answer: RankAnswer, name: str) -> list[int] | None:
    tensor = answer.tensors.get(name)
    return None if tensor is None else list(tensor.shape)


def _of_right_shape(find: Callable[[Evidence, RankAnswer], Iterator[Finding]]) -> Judge:
    """A judge of the ranks that drew parts of the right shape: no others can be held against anything."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            if all(_seen_shape(answer, name) == _shape(evidence.case, name, answer) for name in DRAWN):
                yield from find(evidence, answer)

    return judge


def _earlier(evidence: Evidence, answer: RankAnswer, name: str) -> Iterator[tuple[RankAnswer, Tensor]]:
    """The ranks before this one in its group, and what they drew under a name."""
    place = place_of(evidence.case, answer.rank)
    for member in place.members[: place.position]:
        if name in evidence.answers[member].tensors:
            yield evidence.answers[member], evidence.answers[member].tensors[name]


def _as_other_ranks(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    for name in _twice(WHOLE):
        for other, theirs in _earlier(evidence, answer, name):
            yield same(f"{name}: what rank {other.rank} has", theirs, answer, name)


def _unlike_other_ranks(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    """Nor does a rank draw for one weight what another has drawn for another weight."""
    for name, theirs_of in itertools.product(_twice(CUT), repeat=2):
        for other, theirs in _earlier(evidence, answer, theirs_of):
            told = f"{name}: numbers that are not those of rank {other.rank} ({theirs_of})"
            apart = not _same_numbers(answer.tensors[name], theirs)
            yield Finding(apart, told, "the same numbers", answer.rank)


def _others_next_time(names: dict[str, int | None]) -> Judge:
    def find(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
        for name in names:
            apart = not _same_numbers(answer.tensors[name], answer.tensors[f"{name}, again"])
            yield Finding(apart, f"{name}: other numbers the next time", "the same numbers", answer.rank)

    return _of_right_shape(find)


def _never_whole(evidence: Evidence) -> Iterator[Finding]:
    """No tensor has much more than a rank's part of a cut weight, where ranks are so many that this tells."""
    for answer in evidence.answers:
        for name in _twice(CUT):
            part, most = math.prod(_shape(evidence.case, name, answer)), answer.facts[f"most {name}"]
            if MOST_PARTS * part < math.prod(evidence.case.params["shape"]):
                told = f"{name}: {part:,} numbers, this rank's part, and never the whole weight"
                yield Finding(most <= MOST_PARTS * part, told, f"a tensor of {most:,}", answer.rank)


def _same_numbers(one: Tensor, two: Tensor) -> bool:
    """Whether two draws go together, scaled or not, as far as the shorter one goes; so do any two of which
    one is zeros.
    """
    shorter = min(one.numel(), two.numel())
    x, y = (each.double().flatten()[:shorter] for each in (one, two))
    return not bool((x @ y).abs() < ALIKE * x.norm() * y.norm())


def _spread(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    fan_in = evidence.case.params["shape"][1]
    for name in CUT | WHOLE:
        scaled = answer.tensors[name].double() * fan_in**0.5
        mean, deviation = scaled.mean().item(), scaled.std().item()
        told = f"{name}: mean 0, standard deviation 1 / sqrt({fan_in})"
        seen = f"mean {mean:.3f}, standard deviation {deviation:.3f} / sqrt({fan_in})"
        yield Finding(abs(mean) < OFF and abs(deviation - 1) < OFF, told, seen, answer.rank)


def _of_default_type(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    wanted = _type_of(evidence.case)
    for name in CUT | WHOLE:
        seen = answer.tensors[name].dtype
        yield Finding(
            seen == wanted, f"{name}: numbers of torch's default type, {wanted}", str(seen), answer.rank
        )


def _not_put_right(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    """Numbers drawn by themselves have neither just the mean nor just the deviation that is asked for."""
    off = []
    for name in CUT:
        scaled = answer.tensors[name].double() * evidence.case.params["shape"][1] ** 0.5
        off.append(max(scaled.mean().abs().item(), (scaled.std() - 1).abs().item()))
    told = "a mean and a standard deviation that chance has made"
    seen = f"mean and deviation of each block as asked for to {max(off):.0e}: its numbers hang together"
    yield Finding(max(off) > TOO_CLOSE, told, seen, answer.rank)


def _normal(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    for name in CUT | WHOLE:
        x = answer.tensors[name].double()
        kurtosis = (((x - x.mean()) ** 4).mean() / x.var() ** 2).item()  # not a number where all are alike
        told = f"{name}: normal numbers, whose fourth moment is 3 squared variances"
        yield Finding(abs(kurtosis - 3) < TAILS, told, f"{kurtosis:.2f}", answer.rank)
        farthest = (x.abs().max() / x.std()).item()
        told = f"{name}: normal numbers, some of which are far from 0"
        yield Finding(farthest > FARTHEST, told, f"at most {farthest:.2f} deviations", answer.rank)


def _each_drawn(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    for name in CUT | WHOLE:
        tensor = answer.tensors[name]
        others = len(tensor.unique()) / tensor.numel()
        told = f"{name}: each number drawn by itself"
        yield Finding(others > UNIQUE, told, f"{others:.0%} of them are different", answer.rank)
        for lines, x in {"rows": tensor.double(), "columns": tensor.double().T}.items():
            usual, most = _go_together(x)
            apart = abs(usual - 1) < TOGETHER and most < MOST_ALIKE
            seen = (
                f"{lines}: products {usual:.2f} times what chance makes them, correlations up to {most:.2f}"
            )
            yield Finding(apart, told, seen, answer.rank)


def _go_together(lines: Tensor) -> tuple[float, float]:
    """The mean squared product of two different lines over what chance makes it, and their largest
    correlation.
    """
    n, size = lines.shape
    products = lines @ lines.T / (size * lines.var())
    off = products - products.diagonal().diag()
    lengths = lines.norm(dim=1)
    alike = (lines @ lines.T / lengths / lengths[:, None]).fill_diagonal_(0.0).abs().max()
    return (off.square().sum() * size / (n * (n - 1))).item(), alike.item()


def _uneven_refused(evidence: Evidence) -> Iterator[Finding]:
    """The weight whose cut does not divide is refused, and no other."""
    shape, ranks = evidence.case.params["shape"], len(groups_of(evidence.case)[0])
    for name, cut in (CUT | WHOLE).items():
        if cut is not None and shape[cut] % ranks:
            sizes = (shape[cut], ranks)
            yield from (refused(name, ("ValueError",), answer, sizes) for answer in evidence.answers)
        else:
            yield from _parts({name: cut})(evidence)


def _sends_nothing(evidence: Evidence) -> Iterator[Finding]:
    return (calls_are("all", [], answer) for answer in evidence.answers)


_BLOCKS = every(_parts(_twice(CUT)), _of_right_shape(_unlike_other_ranks), _others_next_time(CUT))
_WHOLES = every(_parts(_twice(WHOLE)), _of_right_shape(_as_other_ranks), _others_next_time(WHOLE))
EXERCISE = Exercise(
    INITIAL_ID,
    "Weights that nobody holds whole",
    ("initial_weight",),
    dict.fromkeys(("values", "subgroup", "own-parts"), Run(_draw_weights)) | {"uneven": Run(_ask_for_uneven)},
    _cases,
    (
        Property(
            "own-blocks",
            "mechanism",
            2,
            "Each rank draws a block of its own of a cut weight, never the whole, and other numbers the next"
            " time.",
            "the block was drawn from shared(), so that all ranks have the same features",
            {"values": every(_parts(DRAWN), _BLOCKS, _never_whole)},
            {"subgroup": _never_whole},
        ),
        Property(
            "whole-alike",
            "mechanism",
            2,
            "A whole weight is the same on every rank, and nothing is sent for it.",
            "it was drawn from own(): the copies differ from the first step on",
            {"values": every(_of_right_shape(_as_other_ranks), _others_next_time(WHOLE), _sends_nothing)},
            {"subgroup": _sends_nothing},
        ),
        Property(
            "spread",
            "numbers",
            2,
            "Numbers are normal, each drawn by itself, their standard deviation is 1 / sqrt(in), with `in` of"
            " the whole weight.",
            "a block cut along dim 1 has in / t inputs; the rest of the sum is on the other ranks",
            {
                "values": every(
                    *map(_of_right_shape, (_spread, _of_default_type, _not_put_right, _normal, _each_drawn))
                )
            },
        ),
        Property(
            "uneven-sizes",
            "robustness",
            1,
            "A size that is cut and does not divide is a ValueError that names it and the ranks.",
            "n // t drops the rest; either dimension can be cut, and a whole weight need not divide",
            {"uneven": _uneven_refused},
        ),
        subgroup(every(_BLOCKS, _WHOLES)),
        Property(
            "own-parts",
            "robustness",
            1,
            "It works with your own RandomStreams.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
            {"own-parts": every(_BLOCKS, _WHOLES)},
        ),
    ),
    builds_on=(STREAMS_ID,),
)
