"""How f and g are used, and how that is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge, Run, every, own_entry
from labkit.checks.lesson_06.unasked import asks_nothing
from labkit.checks.rank import Rank
from labkit.checks.shared.again import first_of_two
from labkit.checks.shared.back_twice import back_twice
from labkit.checks.shared.beside import calls_are, nbytes, on_each, same
from labkit.checks.shared.calls_inside import INSIDE, calls_if_recorded, no_more_calls
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.split import drawn, dtype_of
from labkit.checks.shared.surroundings import operator_keeps


def used(name: str) -> dict[str, Run]:
    """The runs of `name.apply(x, group)`."""
    run = Run(partial(_use, name=name), _inputs, own_entry)
    return {"values": run, "subgroup": run, "layout": run, "kept": Run(partial(_count_kept, name=name))}


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """x and grad_output, different on every rank: [ranks, *shape]."""
    shape = (case.ranks, *case.params["shape"])
    return {"x": drawn(case, generator, *shape), "grad_output": drawn(case, generator, *shape)}


def _arguments(case: Case, handed: Mapping[str, Tensor], rank: int) -> tuple[Tensor, Tensor]:
    """x and grad_output of a rank: x is zeros on the case's `zeros_on`, grad_output on the next rank. Where
    the layout matters they are views that are not contiguous: on every rank, the gradient an expanded one;
    or, as `views_on` says, on one alone, the gradient a transposed one.
    """
    zeros = case.params.get("zeros_on")
    x = handed["x"] * float(zeros != rank)
    grad_output = handed["grad_output"] * float(zeros is None or rank != (zeros + 1) % case.ranks)
    if case.kind != "layout":
        return x, grad_output
    if "views_on" not in case.params:
        return x.transpose(0, -1), grad_output[..., :1].expand(grad_output.shape).transpose(0, -1)
    views = x.transpose(0, -1), grad_output.transpose(0, -1)
    return views if case.params["views_on"] == rank else (views[0].contiguous(), views[1].contiguous())


def _use(rank: Rank, name: str) -> None:
    """Before forward, and between it and backward, the operator is used in the group of all, where that is
    another one.

    Answers: output, input_grad, and "x after", "grad_output after"; "output later" and "gradient later" of a
    call that another one follows; "gradient kept" and "gradient again" of two backwards through one graph, of
    kind "values"; "output alone" of one without gradients, and "output alone later" of the same when another
    one is over; and those of `_use_among_others`. Fact: asks, whether x asks for a gradient after these.
    Recordings: without gradients, forward, backward, later.
    """
    group = enter_group(rank)
    x, grad_output = _arguments(rank.case, rank.inputs, rank.rank)
    operator = getattr(rank.student, name)
    if rank.case.kind == "subgroup":
        operator.apply(torch.ones_like(x), rank.group)
    with torch.no_grad():
        with rank.recording("without gradients"):
            alone = operator.apply(x, group)
        rank.answer("output alone", alone)
        operator.apply(1.0 - x, group)
    rank.answer("output alone later", alone)
    rank.fact("asks", x.requires_grad)
    x.requires_grad_()
    with rank.recording("forward"):
        out = operator.apply(x, group)
    rank.answer("output", out)
    if rank.case.kind == "subgroup":
        operator.apply(torch.ones_like(x), rank.group)  # another group, before backward of this one
    with rank.attempt("input-gradients"), rank.recording("backward"):
        out.backward(grad_output)
    rank.answer("input_grad", x.grad)
    rank.answer("x after", x)
    rank.answer("grad_output after", grad_output)
    with rank.attempt("callers-tensors"), rank.recording("later"):
        later = first_of_two(lambda tensor: operator.apply(tensor, group), x, grad_output)
        for what, tensor in zip(("output", "gradient"), later, strict=True):
            rank.answer(f"{what} later", tensor)
    with rank.attempt("callers-tensors"):
        if rank.case.kind == "values":
            back = back_twice(lambda tensor: operator.apply(tensor, group), x, grad_output)
            for what, tensor in zip(("gradient kept", "gradient again"), back, strict=True):
                rank.answer(what, tensor)
    with rank.attempt("callers-tensors"):
        _use_among_others(rank, lambda tensor: operator.apply(tensor, group), x, grad_output)


def _use_among_others(rank: Rank, apply: Callable[[Tensor], Tensor], x: Tensor, grad_output: Tensor) -> None:
    """A call as in a model: what gave it x has kept x for its backward, and what takes the output keeps that.
    Answers: "x made", after all, and "gradient made". Recordings: forward and backward, `INSIDE`.
    """
    made = x.detach().clone().requires_grad_().exp()
    made.retain_grad()
    weights = grad_output.detach().clone().requires_grad_()
    with rank.recording(f"forward, {INSIDE}"):
        out = apply(made)
    with rank.recording(f"backward, {INSIDE}"):
        (out * weights).sum().backward()
    rank.answer("x made", made)
    rank.answer("gradient made", made.grad)


def _count_kept(rank: Rank, name: str) -> None:
    """Fact: kept_bytes, what `operator_keeps` gives."""
    with rank.device:  # where what it makes is made
        rank.fact("kept_bytes", operator_keeps(getattr(rank.student, name), rank.group, dtype_of(rank.case)))


# -- judges


def _given(evidence: Evidence, rank: int) -> dict[str, Tensor]:
    """What one rank's call was given."""
    given = _arguments(evidence.case, own_entry(evidence.case, evidence.inputs, rank), rank)
    return dict(zip(("x", "grad_output"), given, strict=True))


def hands_on(answered: str, given: str) -> Judge:
    """What was answered (a name of `TOLD`) is what the rank was given, as it is."""

    def find(evidence: Evidence, answer: RankAnswer) -> Finding:
        told = f"{TOLD[answered]}: {given} itself"
        return same(told, _given(evidence, answer.rank)[given], answer, answered)

    return on_each(find)


def adds(answered: str, given: str) -> Judge:
    """What was answered is the sum of what the ranks of the group were given."""

    def find(evidence: Evidence, answer: RankAnswer) -> Finding:
        members = place_of(evidence.case, answer.rank).members
        total = torch.stack([_given(evidence, rank)[given] for rank in members]).sum(0)
        told = f"{TOLD[answered]}: the sum of {given} over ranks {members}"
        return same(told, total, answer, answered)

    return on_each(find)


TOLD = {
    "output": "output",
    "output alone": "output, without gradients",
    "input_grad": "gradient of x",
    "output alone later": "output, without gradients, after another call",
    "output later": "output, after another call",
    "gradient later": "gradient of x, after another backward",
    "gradient kept": "gradient of x, after another backward through the same graph",
    "gradient again": "gradient of x, of a second backward through the same graph",
    "gradient made": "gradient of an x that another operation has made",
}


def one_all_reduce(where: str) -> Judge:
    """One all-reduce in that phase, "forward" or "backward", and nothing in the other; a forward without
    gradients sends what any does, and so does a call inside a model. Two calls send twice as much.
    """

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            if place_of(evidence.case, answer.rank).size > 1:
                for phase in ("without gradients", "forward", "backward"):
                    sends = (phase == "backward") == (where == "backward")
                    calls = [("all_reduce", nbytes(evidence.inputs["x"][0]))] if sends else []
                    yield calls_are(phase, calls, answer)
                    yield from calls_if_recorded(f"{phase}, {INSIDE}", calls, answer)
                both = [("all_reduce", nbytes(evidence.inputs["x"][0]))] * 2
                yield no_more_calls("later", both, answer)

    return judge


def tensors_kept(output: Callable[[str, str], Judge], gradient: Callable[[str, str], Judge]) -> Judge:
    """What was handed over holds what it held, and what a call gave stays, when another one follows."""
    return every(
        _given_kept,
        asks_nothing,
        output("output alone later", "x"),
        output("output later", "x"),
        gradient("gradient later", "grad_output"),
        gradient("gradient kept", "grad_output"),
        gradient("gradient again", "grad_output"),
        gradient("gradient made", "grad_output"),
    )


def _given_kept(evidence: Evidence) -> Iterator[Finding]:
    """What was handed over holds what it held."""
    for answer in evidence.answers:
        for name, given in _given(evidence, answer.rank).items():
            yield same(f"{name} as it was handed over", given, answer, f"{name} after")
        made = _given(evidence, answer.rank)["x"].exp()
        yield same("an x that another operation has made, as it was handed over", made, answer, "x made")


def operator_case(name: str, kind: str, ranks: int, shape: Sequence[int], seed: int, **params: Any) -> Case:
    """A case of f or g; shape: of every rank's x."""
    return Case(name, ranks, {"shape": list(shape), **params}, seed, kind=kind)
