"""What `checkpoint(function, *args)` holds between forward and backward and afterwards, and how often it runs
the function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.lesson_05.observing import autocast_of, gradients_of, used_of
from labkit.checks.lesson_05.subjects import Recipe, Subject
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.beside import State
from labkit.checks.shared.held import bytes_kept

MEASURED_RUNS = {
    "kept": "bytes between forward and backward are counted",
    "left": "bytes after backward are counted",
    "counted": "runs are counted",
}
SLACK_BYTES = 16 * 1024  # the generator's state is 5 KiB; what a careful solution keeps besides stays below
Change = Callable[[Rank, Subject], Subject]


def as_it_is(rank: Rank, subject: Subject) -> Subject:
    """The usual `Change`: none."""
    return subject


def with_one_inside(rank: Rank, subject: Subject) -> Subject:
    """All but the module's last layer in a checkpoint inside the function, whose runs are counted."""
    *first, last = subject.module.children()
    inner = nn.Sequential(*first)
    return replace(subject, function=lambda x: last(rank.student.checkpoint(inner, x)), counted=inner)


def measured(rank: Rank, recipe: Recipe, changed: Change = as_it_is) -> None:
    """Facts: kept_bytes (between forward and backward), left_bytes (after backward), both with the results,
    which live; dropped_bytes, of a call whose results are dropped and that has no backward; calls (after
    forward, after backward). Answers, of each of the other three: output, input_grad.N and grad.NAME as "kept
    NAME", "left NAME" and "counted NAME".

    A call of two rows goes before each that is measured: what is kept of the last call alone is seen then.

    changed: makes the subject that is measured of the recipe's.
    """
    measurements = _Measurements(rank, recipe, changed)
    measurements.kept()
    measurements.left()
    measurements.dropped()
    measurements.counted()


class _Measurements:
    """Each of a fresh subject that `recipe` makes and `changed` changes, with the same numbers in it."""

    def __init__(self, rank: Rank, recipe: Recipe, changed: Change):
        self.rank, self.recipe, self.changed = rank, recipe, changed
        self.subject = self._new()
        self.at_hand = _room_for_gradients(self.subject)

    def _new(self) -> Subject:
        """A fresh one."""
        return self.changed(self.rank, self.recipe.subject(self.rank.case, self.rank.inputs))

    def kept(self) -> None:
        """Bytes between forward and backward."""

        def forward() -> Callable[[], tuple[Any, Subject]]:
            fresh = self._prepared()
            return lambda: (self._call(fresh), fresh)

        def go_back(kept: tuple[Any, Subject]) -> None:
            results, fresh = kept
            output = _backward(fresh, results)
            _tell(self.rank, "kept", output, gradients_of(fresh))

        self.rank.fact("kept_bytes", bytes_kept(forward, go_back))

    def left(self) -> None:
        """Bytes when backward is over."""
        self.rank.fact(
            "left_bytes",
            bytes_kept(
                lambda: partial(self._back_and_forth, self._prepared()),
                lambda results: _tell(self.rank, "left", used_of(results, self.subject.result), self.at_hand),
            ),
        )

    def dropped(self) -> None:
        """Bytes that a call leaves whose results are dropped, with its arguments, and no backward comes."""

        def forward() -> Callable[[], None]:
            return partial(self._call_and_drop, self._prepared())

        self.rank.fact("dropped_bytes", bytes_kept(forward))

    def counted(self) -> None:
        """Runs of the function, in forward and in all."""
        calls = _count_runs(self.subject)
        results = self._call(self.subject)
        after_forward = len(calls)
        output = _backward(self.subject, results)
        self.rank.fact("calls", [after_forward, len(calls)])
        _tell(self.rank, "counted", output, gradients_of(self.subject))

    def _call(self, subject: Subject) -> Any:
        seed_generators(self.rank.case.seed)
        with autocast_of(subject):
            return self.rank.student.checkpoint(subject.function, *subject.args)

    def _call_and_drop(self, subject: Subject) -> None:
        self._call(_of_rows(subject, slice(None)))

    def _back_and_forth(self, subject: Subject) -> Any:
        results = self._call(subject)
        _backward(subject, results)
        for name, gradient in gradients_of(subject).items():
            self.at_hand[name][: len(gradient)].copy_(gradient)
        _forget_gradients(subject)
        return results

    def _prepared(self) -> Subject:
        fresh = self._new()
        self._back_and_forth(_first_rows(fresh))
        for gradient in self.at_hand.values():
            gradient.zero_()
        return fresh


def _backward(subject: Subject, results: Any) -> Tensor:
    """What backward started from."""
    output = used_of(results, subject.result)
    output.backward(subject.grad_output.to(output.dtype))
    return output


def _count_runs(subject: Subject) -> list[None]:
    """What grows by one whenever the function runs: its module notes it, so that the function is the same as
    elsewhere.
    """
    runs: list[None] = []
    subject.counted.register_forward_pre_hook(lambda module, args: runs.append(None))
    return runs


def _first_rows(subject: Subject) -> Subject:
    """Two rows of each argument: batch normalisation needs two."""
    return replace(_of_rows(subject, slice(2)), grad_output=subject.grad_output[:2].clone())


def _of_rows(subject: Subject, rows: slice) -> Subject:
    """The same with copies of these rows of each argument, with gradients where it asks for them."""

    def copied(arg: Any) -> Any:
        return (
            arg.detach()[rows].clone().requires_grad_(arg.requires_grad) if isinstance(arg, Tensor) else arg
        )

    return subject.of(tuple(copied(arg) for arg in subject.given))


def _forget_gradients(subject: Subject) -> None:
    subject.module.zero_grad()
    for leaf in subject.leaves:
        leaf.grad = None


def _room_for_gradients(subject: Subject) -> State:
    """Zeros for all of `gradients_of`: what gradients are copied to that are to be gone."""
    found = {f"input_grad.{i}": torch.zeros_like(leaf) for i, leaf in enumerate(subject.leaves)}
    return found | {f"grad.{name}": torch.zeros_like(p) for name, p in subject.module.named_parameters()}


def _tell(rank: Rank, which: str, output: Tensor, gradients: State) -> None:
    """Answers: "WHICH output" and the gradients as "WHICH NAME"."""
    for name, tensor in {"output": output, **gradients}.items():
        rank.answer(f"{which} {name}", tensor)
