"""The check of `clip_grad_norm`: one norm for a model of which some parameters are cut and some are whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.lesson_07.trial import calls_of
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.sharded_evidence import calls_text, finding, within_group
from labkit.checks.shared.sharded_layer import charged, drawn, dtype_of

CUT = {"first": (8, 3), "second": (4, 5)}
WHOLE = {"norm": (7,), "positions": (3, 4)}


def clip_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """The gradients of the whole model for each group; the norm of the whole ones is a large part."""
    scale = case.params.get("scale", 1.0)
    return {
        name: scale * drawn(case, generator, len(groups_of(case)), *shape)
        for name, shape in {**CUT, **WHOLE}.items()
    }


def _gradients(case: Case, inputs: Inputs, rank: int) -> dict[str, torch.Tensor]:
    place = place_of(case, rank)
    found = {name: place.block(inputs[name][place.index], 0) for name in CUT}
    return found | {name: inputs[name][place.index] for name in WHOLE}


def clip_on_rank(rank: Rank) -> None:
    """Clip what this rank has. "missing": some parameters have no gradient. "none-cut": none is cut."""
    group, case = enter_group(rank), rank.case
    parameters = {}
    for name, gradient in _gradients(case, rank.inputs, rank.rank).items():
        parameters[name] = nn.Parameter(torch.zeros_like(gradient))
        parameters[name].grad = gradient.clone()
    cut, whole = [parameters[n] for n in CUT], [parameters[n] for n in WHOLE]
    if case.params["kind"] == "missing":
        for bare in (cut, whole):
            bare.append(nn.Parameter(torch.zeros(5, dtype=dtype_of(case), device=rank.device)))
    if case.params["kind"] == "none-cut":
        cut = []
    with rank.recording("all"):
        norm = rank.student.clip_grad_norm(cut, whole, case.params["max_norm"], group)
    rank.answer("norm", torch.as_tensor(norm).double().reshape(()))
    for name, parameter in parameters.items():
        rank.answer(f"grad.{name}", parameter.grad)


def _difference(expected: torch.Tensor, seen: torch.Tensor | None) -> str | None:
    """At float32's tolerance: some divide by the norm plus 1e-6, as torch does."""
    if seen is None or seen.dtype != torch.float64:
        return difference(expected, seen)
    return difference(expected.float(), seen.float())


def judge_clip(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Compare with the norm of the whole model's gradient, each number counted once."""
    kind = case.params["kind"]
    for answer in answers:
        place = place_of(case, answer.rank)
        names = list(WHOLE) if kind == "none-cut" else [*CUT, *WHOLE]
        square = sum(inputs[n][place.index].double().square().sum() for n in names)
        norm = torch.as_tensor(square).sqrt()
        seen = answer.tensors.get("norm", torch.tensor(torch.nan))
        close = torch.allclose(norm, seen, rtol=1e-4 if case.params.get("dtype") else 1e-9)
        told = f"norm {norm.item():.6g}, of all numbers of the whole model once"
        yield finding(charged(case, "total-norm"), close, told, f"{seen.item():.6g}", answer)
        factor = min(1.0, case.params["max_norm"] / norm.item())
        for name, gradient in _gradients(case, inputs, answer.rank).items():
            scaled = gradient if name not in names else (gradient.double() * factor).to(gradient.dtype)
            told = f"gradient of {name}, times {factor:.4g}"
            wrong = _difference(scaled, answer.tensors.get(f"grad.{name}"))
            yield finding(charged(case, "scaled-gradients"), wrong is None, told, wrong or "", answer)
        if kind == "subgroup":
            yield within_group("subgroup", case, answer)
        if "communication" in case.properties:
            calls = calls_of(answer, "all")
            one = len(calls) == 1 and calls[0][0] == "all_reduce" and calls[0][1] <= 8
            yield finding("communication", one, "one all_reduce of one number", calls_text(calls), answer)
