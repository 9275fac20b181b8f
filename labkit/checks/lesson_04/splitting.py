"""What `04.split-micro-batches` must show: views of a batch, of even sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import refused

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "on its own": lambda x: x,
    "with numbers in between": lambda x: torch.stack([x, x + 1], dim=-1)[..., 0],
    "a part of more": lambda x: torch.cat([x + 1, x, x + 2])[len(x) : 2 * len(x)],
    "every second of more": lambda x: torch.stack([x + 1, x], dim=1).flatten(0, 1)[1::2],
    "transposed": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
}
"""How a batch lies in memory: what has these numbers, made from a tensor of its own."""
DTYPES = ("int64", "bfloat16", "uint8", "float32")


def split_case(name: str, seed: int, shapes: list[list[int]], **params: Any) -> Case:
    """shapes: [num_micro_batches, samples, *rest] each. refused: [num_micro_batches, samples] each."""
    layouts = ["on its own", "with numbers in between"]
    params = {"shapes": shapes, "layouts": layouts, "dtypes": ["float32"], "refused": [], **params}
    return Case(name, 1, params, seed, kind="values")


def batches_case(name: str, seed: int, shapes: list[list[int]]) -> Case:
    """The same of any batch: of any dtype, wherever it lies in memory, and of each shape twice."""
    dtypes = [DTYPES[index % len(DTYPES)] for index in range(len(shapes))]
    params = {"shapes": [*shapes, *shapes], "layouts": list(LAYOUTS), "dtypes": dtypes, "refused": []}
    return Case(name, 1, params, seed, kind="batches")


def _cases(seed: int) -> list[Case]:
    shapes = [[4, 9, 3], [3, 7], [1, 5, 2], [5, 5, 1], [4, 8, 2, 3], [6, 15], [7, 9]]
    kinds = [[3, 8, 2], [4, 9, 3, 2, 2], [2, 6], [5, 11, 4], [20, 33, 3], [2, 5, 2, 2, 1, 2], [3, 10]]
    return [
        split_case("seven shapes", seed, shapes, refused=[[6, 5], [0, 4], [1, 0], [-1, 3]]),
        batches_case("token ids, images, parts of more", seed, kinds),
    ]


def _draw_batches(case: Case, generator: torch.Generator) -> Inputs:
    """batch0, ...: the numbers of each batch, of its dtype."""
    found = {}
    for index, (_, *shape) in enumerate(case.params["shapes"]):
        numbers = 100 * torch.rand(shape, generator=generator)
        found[f"batch{index}"] = numbers.to(getattr(torch, _turn(case, "dtypes", index)))
    return found


def _turn(case: Case, of: str, index: int) -> str:
    """The layouts and the dtypes of a case take turns."""
    return case.params[of][index % len(case.params[of])]


def _split(rank: Rank) -> None:
    """Answers: joined0, ... Facts: sizes0, views0, ..., and what each refused size raised."""
    for index, (m, *_) in enumerate(rank.params["shapes"]):
        batch = LAYOUTS[_turn(rank.case, "layouts", index)](rank.inputs[f"batch{index}"])
        parts = rank.student.split_micro_batches(batch, m)
        rank.fact(f"sizes{index}", [len(part) for part in parts])
        rank.answer(f"joined{index}", torch.cat(list(parts)))
        own = batch.untyped_storage().data_ptr()
        rank.fact(f"views{index}", all(p.untyped_storage().data_ptr() == own for p in parts))
    for m, samples in rank.params["refused"]:
        with rank.expect_error(f"{m} of {samples}"):
            rank.student.split_micro_batches(torch.zeros(samples, 2), m)


# -- judges


def _each(evidence: Evidence) -> Iterator[tuple[int, int, int, str]]:
    """The number of a shape, its micro-batches, its samples, and both in words."""
    for index, (m, samples, *_) in enumerate(evidence.case.params["shapes"]):
        layout, dtype = (_turn(evidence.case, of, index) for of in ("layouts", "dtypes"))
        yield index, m, samples, f"{samples} samples ({dtype}, {layout}) in {m} micro-batches"


def _join_to_the_batch(evidence: Evidence) -> Iterator[Finding]:
    for index, _, _, told in _each(evidence):
        joined = evidence.answers[0].tensors[f"joined{index}"]
        right = torch.equal(joined, evidence.inputs[f"batch{index}"])
        yield Finding(right, f"{told}: joined again they are the batch", "they are not")


def _are_even(evidence: Evidence) -> Iterator[Finding]:
    for index, m, samples, told in _each(evidence):
        sizes, over = evidence.answers[0].facts[f"sizes{index}"], samples % m
        wanted = [samples // m + 1] * over + [samples // m] * (m - over)
        yield Finding(sizes == wanted, f"{told}: sizes {wanted}", f"sizes {sizes}")


def _are_views(evidence: Evidence) -> Iterator[Finding]:
    for index, _, _, told in _each(evidence):
        are_views = evidence.answers[0].facts[f"views{index}"]
        yield Finding(are_views, f"{told}: views of the batch", "a copy")


def _impossible_is_refused(evidence: Evidence) -> Iterator[Finding]:
    for m, samples in evidence.case.params["refused"]:
        found = refused(f"{m} of {samples}", ["ValueError"], evidence.answers[0])
        yield replace(found, expected=f"{found.expected}, for {m} of {samples} samples")


EXERCISE = Exercise(
    "04.split-micro-batches",
    "Cut a batch into micro-batches",
    ("split_micro_batches",),
    dict.fromkeys(("values", "batches"), Run(_split, _draw_batches)),
    _cases,
    (
        Property(
            "keeps-samples",
            "numbers",
            1,
            "Joined again, the micro-batches are the batch.",
            "the remainder is dropped, or the order is changed",
            {"values": _join_to_the_batch, "batches": _join_to_the_batch},
        ),
        Property(
            "even-sizes",
            "numbers",
            2,
            "There are m micro-batches and their sizes differ by at most one.",
            "torch.chunk and torch.split take a size, and may return fewer parts than you asked for",
            {"values": _are_even},
            {"batches": _are_even},
        ),
        Property(
            "no-copy",
            "mechanism",
            1,
            "The micro-batches are views of the batch.",
            "clone, or torch.stack of single samples",
            {"values": _are_views},
            {"batches": _are_views},
        ),
        Property(
            "refuses",
            "robustness",
            1,
            "More micro-batches than samples, or fewer than one, is a ValueError.",
            "an empty micro-batch has a mean loss of NaN",
            {"values": _impossible_is_refused},
        ),
    ),
)
