"""The checks of f and g: two functions that do to values what the other does to gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from labkit.checks.exercise import Case, Exercise, Finding, Inputs, Property, RankAnswer
from labkit.checks.rank import Rank
from labkit.checks.shared.sharded_evidence import compared, nbytes, traffic, within_group
from labkit.checks.shared.sharded_layer import charged, drawn, enter_group, place_of


def _operator_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """x and grad_output, different on every rank: [ranks, *shape]."""
    shape = (case.ranks, *case.params["shape"])
    return {"x": drawn(case, generator, *shape), "grad_output": drawn(case, generator, *shape)}


def _operator_tensors(case: Case, inputs: Inputs, rank: int) -> tuple[Tensor, Tensor]:
    """What one rank is handed. A "layout" case hands over views that are not contiguous."""
    x, grad_output = inputs["x"][rank].clone(), inputs["grad_output"][rank].clone()
    if case.params["kind"] == "layout":
        return x.transpose(0, -1), grad_output[..., :1].expand(grad_output.shape).transpose(0, -1)
    return x, grad_output


def _operator_on_rank(name: str) -> Callable[[Rank], None]:
    def on_rank(rank: Rank) -> None:
        group = enter_group(rank)
        x, grad_output = _operator_tensors(rank.case, rank.inputs, rank.rank)
        x.requires_grad_()
        with rank.recording("forward"):
            out = getattr(rank.student, name).apply(x, group)
        rank.answer("output", out)
        with rank.attempt(charged(rank.case, "input-gradients")), rank.recording("backward"):
            out.backward(grad_output)
        rank.answer("input_grad", x.grad)
        rank.answer("x after", x)
        rank.answer("grad_output after", grad_output)

    return on_rank


def _judge_operator(summed: str) -> Callable[[Case, Inputs, list[RankAnswer]], Iterator[Finding]]:
    """f sums gradients in backward (`summed` = "backward"), g sums values in forward."""

    def judge(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
        for answer in answers:
            values, gradients = _operator_findings(case, inputs, answer, summed)
            match case.params["kind"]:
                case "layout":
                    yield from (replace(f, property="any-layout") for f in (values, gradients))
                case "subgroup":
                    yield replace(gradients if summed == "backward" else values, property="subgroup")
                    yield within_group("subgroup", case, answer)
                case _:
                    yield from (values, gradients)
                    yield from _operator_manners(case, inputs, answer, summed)

    return judge


def _operator_findings(
    case: Case, inputs: Inputs, answer: RankAnswer, summed: str
) -> tuple[Finding, Finding]:
    """What the rank's output and its gradient of x should have been, and whether they were."""
    members = place_of(case, answer.rank).members
    tensors = [_operator_tensors(case, inputs, rank) for rank in members]
    x, grad = tensors[members.index(answer.rank)]
    about_x, about_grad = "x itself", "grad_output itself"
    if summed == "forward":
        x, about_x = torch.stack([v for v, _ in tensors]).sum(0), f"the sum of x over ranks {members}"
    else:
        grad = torch.stack([g for _, g in tensors]).sum(0)
        about_grad = f"the sum of grad_output over ranks {members}"
    return (
        compared("forward-values", f"output: {about_x}", x, answer, "output"),
        compared("input-gradients", f"gradient of x: {about_grad}", grad, answer, "input_grad"),
    )


def _operator_manners(case: Case, inputs: Inputs, answer: RankAnswer, summed: str) -> Iterator[Finding]:
    if place_of(case, answer.rank).size > 1:
        for phase in ("forward", "backward"):
            calls = [("all_reduce", nbytes(inputs["x"][0]))] if phase == summed else []
            yield traffic("communication", phase, calls, answer)
    for name, given in zip(("x", "grad_output"), _operator_tensors(case, inputs, answer.rank), strict=True):
        yield compared("callers-tensors", f"{name} as it was handed over", given, answer, f"{name} after")


def operator_case(name: str, kind: str, ranks: int, shape: Sequence[int], seed: int, **params: Any) -> Case:
    """A case of f or g. kind: values, layout or subgroup. shape: of every rank's x."""
    properties = {
        "values": ("forward-values", "input-gradients", "communication", "callers-tensors"),
        "layout": ("any-layout",),
        "subgroup": ("subgroup",),
    }[kind]
    return Case(name, ranks, {"kind": kind, "shape": list(shape), **params}, seed, properties=properties)


def operator_exercise(
    exercise_id: str,
    title: str,
    name: str,
    summed: str,
    cases: Callable[[int], list[Case]],
    properties: list[Property],
) -> Exercise:
    """An exercise on f (summed in "backward") or g (summed in "forward"), used as `name.apply(x, group)`."""
    return Exercise(
        exercise_id,
        title,
        (name,),
        tuple(properties),
        cases,
        _operator_inputs,
        _operator_on_rank(name),
        _judge_operator(summed),
    )
