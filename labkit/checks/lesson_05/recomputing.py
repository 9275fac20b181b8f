"""The check of `checkpoint(function, *args)`: the same run, once by plain autograd and once through the
student's.

The judge observes plain calls in its own process; the rank observes the student's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import JSON, Case, Inputs
from labkit.checks.exercise import Evidence, Run
from labkit.checks.lesson_05.measuring import measured, with_one_inside
from labkit.checks.lesson_05.observing import autocast_of, observe
from labkit.checks.lesson_05.subjects import (
    Call,
    Recipe,
    Several,
    Subject,
    WithNumber,
    in_part_in_full,
    one_end,
    one_for_two,
    one_result,
    several_arguments,
    two_ends,
    view_of_x,
    with_batch_norm,
    with_deep_batch_norm,
    with_dropout,
    with_its_own_dropout,
    with_mask,
    with_two_ends,
    with_x_handed_back,
    x_as_data,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import State, nbytes


def _counted(function: Call) -> tuple[Call, list[str]]:
    """A function to hand out, and where its calls are noted, out of its reach: the dtype of each result."""
    types: list[str] = []

    def noted(*args: Any) -> Any:
        types.append("")
        result = function(*args)
        types[-1] = str(result.dtype) if isinstance(result, Tensor) else ""
        return result

    return noted, types


def _raises_in_its_second_run(function: Call) -> Call:
    """Runs once; the second time it draws a random number and raises."""
    noted, calls = _counted(function)

    def second(*args: Any) -> Any:
        result = noted(*args)
        if len(calls) > 1:
            torch.rand(1)
            raise ArithmeticError("the second run failed")
        return result

    return second


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


PLAIN = Recipe()


def hand(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """The parameters, and this rank's entry of all else."""
    return {name: t if name.startswith("full.") else t[rank] for name, t in inputs.items()}


# -- on a rank


def _send(rank: Rank, subject: Subject) -> None:
    for name, tensor in observe(subject, rank.student.checkpoint, rank.case.seed).items():
        rank.answer(name, tensor)


def _once(rank: Rank, recipe: Recipe) -> None:
    _send(rank, recipe.subject(rank.case, rank.inputs))


def _without_gradients(rank: Rank, recipe: Recipe) -> None:
    """Under no_grad. Answers: output. Facts: calls, graph (whether the result has one)."""
    subject = recipe.subject(rank.case, rank.inputs)
    function, calls = _counted(subject.function)
    with torch.no_grad():
        output = rank.student.checkpoint(function, *subject.args)
    rank.answer("output", output)
    rank.fact("calls", len(calls))
    rank.fact("graph", output.requires_grad)


def _types(rank: Rank, recipe: Recipe) -> None:
    """Facts: types_outside and types_inside, of the result in each run: where forward is outside autocast or
    inside, and backward inside another one.
    """
    for where, dtype in (("outside", None), ("inside", torch.float16)):
        subject = replace(recipe.subject(rank.case, rank.inputs), autocast=dtype)
        function, types = _counted(subject.function)
        with autocast_of(subject):
            output = rank.student.checkpoint(function, *subject.args)
        with torch.autocast("cpu", torch.bfloat16), rank.attempt("autocast"):
            output.backward(subject.grad_output.to(output.dtype))
        rank.fact(f"types_{where}", list[JSON](types))


def _nested(rank: Rank, recipe: Recipe, ends: Call = one_end) -> None:
    """Fact: calls, of the inner function, after backward. ends: what is made of its result."""
    subject = recipe.subject(rank.case, rank.inputs)
    *first, last = subject.module.children()
    inner, calls = _counted(nn.Sequential(*first))
    subject.function = lambda x: ends(last, rank.student.checkpoint(inner, x), x)
    _send(rank, subject)
    rank.fact("calls", [len(calls)])


def _raises(rank: Rank, recipe: Recipe) -> None:
    """Answers: state_before, state_after. Fact: second_run."""
    subject = recipe.subject(rank.case, rank.inputs)
    output = rank.student.checkpoint(_raises_in_its_second_run(subject.function), *subject.args)
    rank.answer("state_before", torch.get_rng_state())
    with rank.expect_error("second_run"):
        output.backward(subject.grad_output)
    rank.answer("state_after", torch.get_rng_state())


def _over_ranks(rank: Rank, recipe: Recipe) -> None:
    """Recording: all."""
    subject = recipe.subject(rank.case, rank.inputs)
    subject.function = partial(_summed, subject.module, lambda x: _SumOverRanks.apply(x, rank.group))
    with rank.recording("all"):
        _send(rank, subject)


def _summed(module: nn.Module, add_up: Call, value: Tensor) -> Tensor:
    """What is checkpointed where ranks add up."""
    return add_up(torch.tanh(module(value))).square()


# -- in the judge


@dataclass(frozen=True)
class BesidePlainCalls(Evidence):
    """A case's answers, and what plain calls give."""

    recipe: Recipe

    @cached_property
    def plain(self) -> list[State]:
        """What a rank should have observed, by rank."""
        return [
            observe(self._subject(rank), lambda function, *args: function(*args), self.case.seed)
            for rank in range(self.case.ranks)
        ]

    @cached_property
    def result_bytes(self) -> int:
        """What the first rank's results take."""
        subject = self._subject(0)
        with torch.no_grad(), autocast_of(subject):
            results = subject.function(*subject.args)
        return sum(map(nbytes, results if isinstance(results, tuple) else (results,)))

    def _subject(self, rank: int) -> Subject:
        return self.recipe.subject(self.case, hand(self.case, self.inputs, rank))


class BesidePlainSums(BesidePlainCalls):
    """The same where ranks add up: the others' share is computed here."""

    def _subject(self, rank: int) -> Subject:
        subject = super()._subject(rank)
        others = [x for r, x in enumerate(self.inputs["x"]) if r != rank]
        share = sum(torch.tanh(subject.module(x)).detach() for x in others)
        subject.function = partial(_summed, subject.module, lambda own: own + share)
        return subject


def _run(
    on_rank: Callable[[Rank, Recipe], None],
    recipe: Recipe = PLAIN,
    evidence: Callable[..., BesidePlainCalls] = BesidePlainCalls,
) -> Run:
    return Run(lambda rank: on_rank(rank, recipe), recipe.inputs, hand, partial(evidence, recipe=recipe))


RUNS: Mapping[str, Run] = {
    "values": _run(_once),
    "measured": _run(measured, Recipe(ones=True)),
    "measured-data": _run(measured, Recipe(args=x_as_data, ones=True)),
    "measured-buffer": _run(measured, Recipe(with_mask, ones=True)),
    "measured-view": _run(measured, Recipe(args=view_of_x, ones=True)),
    "measured-dropout": _run(measured, Recipe(with_dropout, ones=True)),
    "measured-autocast": _run(
        measured, Recipe(in_part_in_full, dtype=torch.float32, autocast=torch.bfloat16, ones=True)
    ),
    "measured-several": _run(measured, Recipe(Several, several_arguments, ones=True)),
    "measured-averages": _run(measured, Recipe(with_batch_norm, ones=True)),
    "measured-nested": _run(partial(measured, changed=with_one_inside), Recipe(ones=True)),
    "dropout": _run(_once, Recipe(with_dropout)),
    "own-dropout": _run(_once, Recipe(with_its_own_dropout)),
    "autocast": _run(_once, Recipe(in_part_in_full, dtype=torch.float32, autocast=torch.bfloat16)),
    "nested-dropout": _run(_nested, Recipe(with_dropout)),
    "half": _run(_once, Recipe(in_part_in_full, dtype=torch.float32, autocast=torch.float16)),
    "single": _run(_once, Recipe(dtype=torch.float32)),
    "types": _run(_types, Recipe(dtype=torch.float32)),
    "data": _run(_once, Recipe(args=x_as_data)),
    "view": _run(_once, Recipe(args=view_of_x)),
    "no-grad": _run(_without_gradients),
    "several": _run(_once, Recipe(WithNumber, several_arguments)),
    "shared": _run(_once, Recipe(Several, one_for_two)),
    "one": _run(_once, Recipe(one_result)),
    "handed-back": _run(_once, Recipe(with_x_handed_back)),
    "nested": _run(_nested),
    "nested-both": _run(partial(_nested, ends=two_ends), Recipe(with_two_ends)),
    "buffers": _run(_once, Recipe(with_batch_norm)),
    "deep-buffers": _run(_once, Recipe(with_deep_batch_norm)),
    "raises": _run(_raises),
    "ranks": _run(_over_ranks, evidence=BesidePlainSums),
}
