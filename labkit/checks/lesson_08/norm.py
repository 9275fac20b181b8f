"""The norm over shards: what `clip_grad_norm` must show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_08.net import FORBIDDEN
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of, calls_text, same, stays_in_group
from labkit.checks.shared.company import in_company
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.split import drawn

CLIP_UTILS = (
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad.clip_grad_norm_",
    "torch.nn.utils.get_total_norm",
)
LARGE = {"dtype": "float16", "scale": 400.0, "max_norm": 100.0, "replicated": [6]}
FROZEN = ["shard.1", "whole.1"]
NONE = [[shard, rank] for shard in (0, 1) for rank in (0, 1)]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each group: gradients of flat tensors and of replicated parameters. For each rank: what its padding
    holds, in the first place no number at all.
    """
    groups, scale, found = len(groups_of(case)), case.params["scale"], {}
    for index, total in enumerate(case.params["totals"]):
        found[f"flat.{index}"] = scale * drawn(case, generator, groups, total)
        found[f"flat.{index}"][:, : case.params.get("no_number", 0)] = math.nan
        padding = 1e3 * drawn(case, generator, case.ranks, total + case.ranks)
        padding[:, 0] = math.nan
        found[f"padding.{index}"] = padding
    for index in range(len(case.params["replicated"])):
        numel = math.prod(_shape(case, index))
        found[f"whole.{index}"] = scale * drawn(case, generator, groups, numel)
    if "above" in case.params:
        gradients = [tensor for name, tensor in found.items() if not name.startswith("padding.")]
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        factor = case.params["above"] * case.params["max_norm"] / norm
        return {name: factor * tensor for name, tensor in found.items()}
    return found


def _shape(case: Case, index: int) -> list[int]:
    """Of a whole parameter: a number stands for a vector."""
    shape = case.params["replicated"][index]
    return shape if isinstance(shape, list) else [shape]


def _owned(total: int, position: int, size: int) -> tuple[int, int, int]:
    """Where a rank's part of a flat tensor begins and ends, and how long its shard is."""
    shard = -(-total // size)
    return min(position * shard, total), min((position + 1) * shard, total), shard


def _hand(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """The rank's own shards, padding included, and the replicated gradients of its group."""
    place = place_of(case, rank)
    found = {name: t[place.index].clone() for name, t in inputs.items() if name.startswith("whole.")}
    for index, total in enumerate(case.params["totals"]):
        start, stop, shard = _owned(total, place.position, place.size)
        noise = inputs[f"padding.{index}"][rank, : shard - (stop - start)]
        found[f"shard.{index}"] = torch.cat([inputs[f"flat.{index}"][place.index, start:stop], noise])
    return found


def _has_gradient(case: Case, index: int, rank: int) -> bool:
    """Whether a rank has a gradient for a shard: `missing` lists [shard, rank] that do not."""
    return [index, rank] not in case.params.get("missing", [])


def _is_used(case: Case, index: int) -> bool:
    """Whether a replicated parameter has a gradient: `unused` lists those that have none on any rank."""
    return index not in case.params.get("unused", [])


def _clip(rank: Rank) -> None:
    """Calls in a row, of new gradients with the same numbers. What is answered is of the last: norm (in
    float32 where it is told so), shard.N, whole.N (gradients afterwards). Facts: shape, of the norm; made,
    how many parameters that had no gradient have one now; elsewhere, the names of those whose gradient is not
    what the tensor holds that it was a view of. Recording, of each call: clip.
    """
    group = enter_group(rank)
    for _ in range(rank.params["calls"]):
        _clip_once(rank, group)


def _clip_once(rank: Rank, group: dist.ProcessGroup) -> None:
    place = place_of(rank.case, rank.rank)
    shards, owned, replicated = [], [], []
    places = _places(rank)
    for index, total in enumerate(rank.params["totals"]):
        name = f"shard.{index}"
        start, stop, _ = _owned(total, place.position, place.size)
        has = _has_gradient(rank.case, index, rank.rank)
        shards.append(_parameter(rank, name, places[name].view(-1) if has else None))
        owned.append(stop - start)
    for index in range(len(rank.params["replicated"])):
        shape = _shape(rank.case, index)
        gradient = places[f"whole.{index}"]
        if index in rank.params.get("transposed", []):
            gradient = _turned(gradient.view(shape[::-1]))
        else:
            gradient = gradient.view(shape)
        used = _is_used(rank.case, index)
        replicated.append(_parameter(rank, f"whole.{index}", gradient if used else None))
    without = [p for p in (*shards, *replicated) if p.grad is None]
    with rank.recording("clip"):
        norm = rank.student.clip_grad_norm(shards, owned, replicated, rank.params["max_norm"], group)
    as_told = torch.float32 if getattr(norm, "dtype", None) == torch.float32 else torch.float64
    rank.answer("norm", torch.as_tensor(norm, dtype=as_told).reshape(()))
    rank.fact("shape", list(torch.as_tensor(norm).shape))
    rank.fact("made", sum(p.grad is not None for p in without))
    found: dict[str, Tensor | None] = {}
    for index, (shard, count) in enumerate(zip(shards, owned, strict=True)):
        found[f"shard.{index}"] = None if shard.grad is None else shard.grad[:count]
    for index, parameter in enumerate(replicated):
        scaled, turned = parameter.grad, index in rank.params.get("transposed", [])
        found[f"whole.{index}"] = scaled if scaled is None or not turned else _turned(scaled)
    found = {name: None if scaled is None else scaled.flatten() for name, scaled in found.items()}
    for name, scaled in found.items():
        rank.answer(name, scaled)
    away = [name for name, scaled in found.items() if scaled is not None and not _is_at(places[name], scaled)]
    rank.fact("elsewhere", away)


def _places(rank: Rank) -> dict[str, Tensor]:
    """By name, where each gradient lies: in a flat tensor that is longer, and in some cases one for all."""
    given = [name for name in rank.inputs if name.startswith(("shard.", "whole."))]
    if not rank.params.get("in_one"):
        return {name: _laid([rank.inputs[name]])[0] for name in given}
    return dict(zip(given, _laid([rank.inputs[name] for name in given]), strict=True))


def _laid(gradients: list[Tensor]) -> Sequence[Tensor]:
    """The same numbers in one flat tensor, with another behind them."""
    *numbers, _ = torch.cat([*gradients, torch.zeros_like(gradients[0][:1])]).split(
        [*(gradient.numel() for gradient in gradients), gradients[0][:1].numel()]
    )
    return numbers


def _turned(tensor: Tensor) -> Tensor:
    """With its dimensions the other way round."""
    return tensor.permute(*reversed(range(tensor.dim())))


def _is_at(place: Tensor, gradient: Tensor) -> bool:
    """Whether the place where a gradient lay holds its numbers."""
    return torch.equal(place[: gradient.numel()].double().nan_to_num(), gradient.double().nan_to_num())


def _parameter(rank: Rank, name: str, gradient: Tensor | None) -> nn.Parameter:
    """With this gradient; `frozen` names those that ask for none, whether they have one or not."""
    parameter = nn.Parameter(torch.zeros_like(rank.inputs[name] if gradient is None else gradient))
    parameter.grad = gradient
    parameter.requires_grad_(name not in rank.params.get("frozen", []))
    return parameter


# -- judges


def _norm(evidence: Evidence, rank: int) -> float:
    case, place = evidence.case, place_of(evidence.case, rank)
    squares = 0.0
    for name, tensor in evidence.inputs.items():
        kind, _, index = name.partition(".")
        if kind == "whole" and _is_used(case, int(index)):
            squares += float(tensor[place.index].double().square().sum())
        if kind == "flat":
            for position, member in enumerate(place.members):
                start, stop, _ = _owned(case.params["totals"][int(index)], position, place.size)
                if _has_gradient(case, int(index), member):
                    squares += float(tensor[place.index, start:stop].double().square().sum())
    return math.sqrt(squares)


def norm_is_global(evidence: Evidence) -> Iterator[Finding]:
    """The returned number is the norm of everything, on every rank."""
    for answer in evidence.answers:
        told = "the norm of all gradients, as it was before"
        expected = torch.tensor(_norm(evidence, answer.rank), dtype=answer.tensors["norm"].dtype)
        yield same(told, expected, answer, "norm")


def norm_is_no_number(evidence: Evidence) -> Iterator[Finding]:
    """A gradient that is none is not left out, on whichever rank it is."""
    for answer in evidence.answers:
        seen = answer.tensors["norm"]
        told = "nan: a norm over something that is no number"
        yield Finding(bool(seen.isnan().all()), told, f"{seen.item()}", answer.rank)


def norm_is_a_scalar(evidence: Evidence) -> Iterator[Finding]:
    """What is returned has no dimensions."""
    for answer in evidence.answers:
        shape = answer.facts["shape"]
        yield Finding(not shape, "a scalar: the norm in no dimensions", f"shape {shape}", answer.rank)


def gradients_are_scaled(evidence: Evidence) -> Iterator[Finding]:
    """Each gradient is scaled by the same factor, or not at all."""
    for answer in evidence.answers:
        factor = min(1.0, evidence.case.params["max_norm"] / (_norm(evidence, answer.rank) + 1e-6))
        yield from _scaled(evidence, answer, factor)
        made = answer.facts["made"]
        yield Finding(not made, "no gradient where there was none", f"{made} made", answer.rank)


def scaled_in_place(evidence: Evidence) -> Iterator[Finding]:
    """A flat tensor of which gradients are views holds what they hold."""
    for answer in evidence.answers:
        elsewhere = answer.facts["elsewhere"]
        told = "each gradient scaled in place: so is what it is a view of"
        yield Finding(not elsewhere, told, f"not that of {', '.join(elsewhere)}", answer.rank)


def _scaled(evidence: Evidence, answer: RankAnswer, factor: float) -> Iterator[Finding]:
    given = _hand(evidence.case, evidence.inputs, answer.rank)
    place = place_of(evidence.case, answer.rank)
    for name, tensor in given.items():
        kind, _, index = name.partition(".")
        count = tensor.numel()
        if kind == "shard":
            if not _has_gradient(evidence.case, int(index), answer.rank):
                continue
            start, stop, _ = _owned(evidence.case.params["totals"][int(index)], place.position, place.size)
            count = stop - start
        elif not _is_used(evidence.case, int(index)):
            continue
        told = f"gradient of {name}, times {factor:.6g}"
        yield same(told, tensor[:count] * factor, answer, name)


def one_small_all_reduce(evidence: Evidence) -> Iterator[Finding]:
    """One all-reduce of one number, in each call."""
    for answer in in_company(evidence):
        for calls in (calls_of(answer, each) for each in (*answer.earlier("clip"), "clip")):
            right = len(calls) == 1 and calls[0][0] == "all_reduce" and calls[0][1] <= 8
            yield Finding(right, "one all_reduce of one number", calls_text(calls), answer.rank)


def norm_case(name: str, kind: str, ranks: int, seed: int, **params: Any) -> Case:
    """totals: elements of each flat tensor; replicated: of each whole parameter, or its shape; max_norm;
    scale: of the gradients; above: their norm, over the bound; no_number: how many at the start of each flat
    tensor are nan; transposed: which of the whole parameters have gradients whose dimensions lie in memory
    the other way round; in_one: whether all gradients lie in one flat tensor; calls: how often one clips.
    """
    # Sums that are not precise cost the norm and what is clipped by it, and not every other property too.
    dtype = "float64" if kind == "values" else "float32"
    sizes = {"totals": [12, 24], "replicated": [], "max_norm": 0.5, "scale": 1.0, "calls": 3, "dtype": dtype}
    return Case(name, ranks, {**sizes, **params}, seed, kind=kind)


def norm_cases(seed: int) -> list[Case]:
    """The visible cases."""
    return [
        norm_case("two ranks, gradients in one flat tensor", "values", 2, seed, late=[1], in_one=True),
        norm_case("a norm below the limit", "values", 4, seed, max_norm=1e4, late=[0]),
        norm_case("a bound of 0", "values", 2, seed, max_norm=0.0),
        norm_case("gradients in float16, whose squares it cannot hold", "values", 2, seed, **LARGE),
        norm_case("gradients of one in ten thousand", "values", 3, seed, scale=1e-4, max_norm=1e-4),
        norm_case("gradients that are no number on one rank", "no-number", 2, seed, no_number=3),
        norm_case("padding that holds something", "padded", 4, seed, totals=[13, 6]),
        norm_case("padding on three ranks", "padded", 3, seed, totals=[7, 7, 1]),
        norm_case("whole parameters beside", "replicated", 2, seed, replicated=[5, 3]),
        norm_case("shards of padding only", "empty", 4, seed, totals=[5, 2]),
        norm_case(
            "gradients missing on some ranks",
            "empty",
            3,
            seed,
            missing=[[0, 1], [1, 0], [1, 2]],
            frozen=FROZEN,
        ),
        norm_case(
            "a whole parameter nobody used, transposed ones, and a single number",
            "empty",
            2,
            seed,
            replicated=[3, [2, 2], [], [2, 3, 1, 2]],
            unused=[0],
            transposed=[1, 3],
            frozen=FROZEN,
        ),
        norm_case("one rank without any gradient", "empty", 2, seed, missing=[[0, 1], [1, 1]]),
        norm_case("no gradient at all", "empty", 2, seed, missing=NONE, replicated=[2], unused=[0]),
        norm_case("no shards, one whole parameter", "empty", 2, seed, totals=[], replicated=[3]),
        norm_case("gradients of zero", "empty", 2, seed, scale=0.0),
        norm_case("two groups of two", "subgroup", 4, seed, groups=[[0, 3], [1, 2]], replicated=[4]),
        norm_case("one rank", "values", 1, seed, replicated=[2]),
    ]


_CLIP = Run(_clip, _inputs, _hand)
_BOTH: Callable[[Any], Any] = every(norm_is_global, gradients_are_scaled)

GLOBAL_GRAD_NORM = Exercise(
    "08.global-grad-norm",
    "A norm over shards",
    ("clip_grad_norm",),
    dict.fromkeys(("values", "padded", "replicated", "empty", "subgroup", "no-number"), _CLIP),
    norm_cases,
    (
        Property(
            "norm",
            "numbers",
            2,
            "The norm of all gradients of all ranks is returned on every rank, a scalar, as it was before: no"
            " number where a gradient is none.",
            "norms were added; squares add up",
            {"values": every(norm_is_global, norm_is_a_scalar), "no-number": norm_is_no_number},
        ),
        Property(
            "clipped",
            "numbers",
            2,
            "Every gradient is scaled in place by the same factor, and by none where the norm is small"
            " enough.",
            "each rank clipped by the norm of its own shards, small gradients were scaled up, or .grad is a"
            " new tensor",
            {"values": every(gradients_are_scaled, scaled_in_place)},
        ),
        Property(
            "padding",
            "robustness",
            2,
            "What the padding holds does not count.",
            "the whole shard was squared: owned[i] says how much of it is real",
            {"padded": _BOTH},
        ),
        Property(
            "replicated",
            "numbers",
            2,
            "Parameters that every rank holds whole count once.",
            "their squares were added before the all-reduce, and so d times",
            {"replicated": _BOTH},
        ),
        Property(
            "nothing-to-add",
            "robustness",
            1,
            "Padding only, no shards, and gradients that are None, zero, transposed or of any shape are"
            " no trouble; every rank takes part.",
            "a rank without gradients returned early, and the others wait",
            {"empty": every(norm_is_global, gradients_are_scaled, scaled_in_place)},
        ),
        Property(
            "communication",
            "mechanism",
            1,
            "One all-reduce of one number.",
            "one all-reduce a tensor, or gradients were gathered",
            dict.fromkeys(("values", "padded", "replicated"), one_small_all_reduce),
            dict.fromkeys(("empty", "no-number", "subgroup"), one_small_all_reduce),
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "The norm is over the group that was handed over.",
            "group= is missing in the call",
            {"subgroup": every(norm_is_global, gradients_are_scaled, stays_in_group)},
        ),
    ),
    forbids=(*FORBIDDEN, *CLIP_UTILS),
)
