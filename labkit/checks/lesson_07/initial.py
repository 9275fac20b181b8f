"""The check of `initial_weight`: what each rank draws for itself, and what all draw alike."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.lesson_07.trial import refused
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.sharded_evidence import compared, finding
from labkit.checks.shared.sharded_layer import charged

KINDS = {"cut along dim 0": 0, "cut along dim 1": 1, "whole": None}
DRAWN = KINDS | {f"{name}, again": cut for name, cut in KINDS.items()}
ALIKE = 0.1  # a correlation of two blocks; by chance less than 0.01, of the same numbers 1
OFF = 0.04  # of the standard deviation; by chance less than 0.007, by a block's fan-in at least 0.4


def initial_on_rank(rank: Rank) -> None:
    """Draw cut and whole weights, two of each kind. Answers: the names in DRAWN.

    Torch's own generator is alike on the ranks where a weight is cut, and differs where it is whole, so that
    drawing from it instead of the streams shows.
    """
    group, shape = enter_group(rank), tuple(rank.params["shape"])
    streams = rank.student.RandomStreams(rank.case.seed, group)
    if rank.params["kind"] == "uneven":
        with rank.expect_error("refusal"):
            rank.student.initial_weight(shape, 0, streams, group)
        return
    for number, (name, cut) in enumerate(DRAWN.items()):
        seed_generators(number if cut is not None else 100 * (1 + rank.rank) + number)
        rank.answer(name, rank.student.initial_weight(shape, cut, streams, group))


def judge_initial(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Shapes, whether draws are alike or apart, and their spread."""
    if case.params["kind"] == "uneven":
        yield from refused(
            "uneven-sizes", answers, "refusal", ["ValueError"], case.params["shape"][0], case.ranks
        )
        return
    for answer in answers:
        place = place_of(case, answer.rank)
        shapes = list(_shapes(case, answer, place.size))
        yield from shapes
        if not all(each.passed for each in shapes):
            continue  # what has another shape cannot be held against anything
        yield from _between_ranks(
            case, answer, [answers[member] for member in place.members[: place.position]]
        )
        yield from _in_time(case, answer)
        if case.params["kind"] == "values":
            yield from _spread(case, answer)


def _shapes(case: Case, answer: RankAnswer, size: int) -> Iterator[Finding]:
    about = charged(case, "own-blocks")
    for name, cut in DRAWN.items():
        wanted = [n // size if dim == cut else n for dim, n in enumerate(case.params["shape"])]
        tensor = answer.tensors.get(name)
        seen = None if tensor is None else list(tensor.shape)
        yield finding(about, seen == wanted, f"{name}: this rank's part, {wanted}", f"{seen}", answer)


def _between_ranks(case: Case, answer: RankAnswer, earlier: list[RankAnswer]) -> Iterator[Finding]:
    """Against the ranks before it in its group: a whole weight is theirs, a block is not."""
    for name, cut in DRAWN.items():
        for other in earlier:
            theirs = other.tensors.get(name)
            if theirs is None:
                continue  # held against that rank already
            if cut is None:
                told = f"{name}: what rank {other.rank} has"
                yield compared(charged(case, "whole-alike"), told, theirs, answer, name)
                continue
            told = f"{name}: numbers that are not those of rank {other.rank}"
            apart = not _same_numbers(answer.tensors[name], theirs)
            yield finding(charged(case, "own-blocks"), apart, told, "the same numbers", answer)


def _in_time(case: Case, answer: RankAnswer) -> Iterator[Finding]:
    for name, cut in KINDS.items():
        about = charged(case, "whole-alike" if cut is None else "own-blocks")
        apart = not _same_numbers(answer.tensors[name], answer.tensors[f"{name}, again"])
        yield finding(about, apart, f"{name}: other numbers the next time", "the same numbers", answer)


def _same_numbers(one: Tensor, two: Tensor) -> bool:
    """Whether two draws go together, scaled or not; so do any two of which one is zeros."""
    if one.shape != two.shape:
        return False
    x, y = one.double().flatten(), two.double().flatten()
    return not bool((x @ y).abs() < ALIKE * x.norm() * y.norm())


def _spread(case: Case, answer: RankAnswer) -> Iterator[Finding]:
    fan_in = case.params["shape"][1]
    for name in KINDS:
        scaled = answer.tensors[name].double() * fan_in**0.5
        mean, deviation = scaled.mean().item(), scaled.std().item()
        told = f"{name}: mean 0, standard deviation 1 / sqrt({fan_in})"
        seen = f"mean {mean:.3f}, standard deviation {deviation:.3f} / sqrt({fan_in})"
        yield finding("spread", abs(mean) < OFF and abs(deviation - 1) < OFF, told, seen, answer)
