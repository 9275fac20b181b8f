"""What `04.split-micro-batches` must show: views of a batch, of even sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import refused


def split_case(name: str, seed: int, shapes: list[list[int]], **params: Any) -> Case:
    """shapes: [num_micro_batches, samples, *rest] each. refused: [num_micro_batches, samples] each."""
    return Case(name, 1, {"shapes": shapes, **params}, seed, kind="values")


def _cases(seed: int) -> list[Case]:
    shapes = [[4, 9, 3], [3, 7], [1, 5, 2], [5, 5, 1], [4, 8, 2, 3], [6, 15], [7, 9]]
    return [split_case("seven shapes", seed, shapes, refused=[[6, 5], [0, 4], [1, 0], [-1, 3]])]


def _draw_batches(case: Case, generator: torch.Generator) -> Inputs:
    shapes = enumerate(case.params["shapes"])
    return {f"batch{i}": torch.randn(shape[1:], generator=generator) for i, shape in shapes}


def _split(rank: Rank) -> None:
    """Answers: joined0, ... Facts: sizes0, views0, ..., and what each refused size raised. Every second batch
    has other numbers between its own.
    """
    for index, (m, *_) in enumerate(rank.params["shapes"]):
        batch = rank.inputs[f"batch{index}"]
        batch = batch if index % 2 else torch.stack([batch, -batch], dim=-1)[..., 0]
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
        yield index, m, samples, f"{samples} samples in {m} micro-batches"


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
    {"values": Run(_split, _draw_batches)},
    _cases,
    (
        Property(
            "keeps-samples",
            "numbers",
            1,
            "Joined again, the micro-batches are the batch.",
            "the remainder is dropped, or the order is changed",
            {"values": _join_to_the_batch},
        ),
        Property(
            "even-sizes",
            "numbers",
            2,
            "There are m micro-batches and their sizes differ by at most one.",
            "torch.chunk and torch.split take a size, and may return fewer parts than you asked for",
            {"values": _are_even},
        ),
        Property(
            "no-copy",
            "mechanism",
            1,
            "The micro-batches are views of the batch.",
            "clone, or torch.stack of single samples",
            {"values": _are_views},
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
