"""What one norm over two kinds of parameters must show: every number of the model once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_12.exchange import own_names
from labkit.checks.lesson_12.grid import enter_alone, enter_grid, grid_case, seats_of, stays_in_job
from labkit.checks.lesson_12.reducing import (
    Shapes,
    dtype_of_gradient,
    other_parameters_of,
    parameters_of,
    shapes_of,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import on_each, same
from labkit.checks.shared.clipping import clipped_difference, sends_one_number
from labkit.checks.shared.company import on_each_in_company
from labkit.checks.shared.split import drawn

FACTORS_ALIKE = 1e-11  # far more than float64 loses, far less than float32 does
SHAPES: Shapes = {"shared": ((6,), (2, 5)), "experts": ((4, 3), (5,))}


def clip_case(name: str, kind: str, copies: int, spread: int, seed: int, **params: Any) -> Case:
    """scale: of the gradients. above: their norm, over the bound. missing: "KIND.NUMBER" -> the places along
    a copy's ranks where it is None. frozen: the ranks on which it does not ask for a gradient. without: the
    kind of which the model has no parameters. bare: the places along a copy's ranks that have no experts.
    buffer: gradients are views of one buffer. earlier: the parameters that had no gradient in an earlier
    call. tuples, after_alone, turned, dtypes: as for `reduce_case`.
    """
    return grid_case(name, kind, copies, spread, seed, **{"max_norm": 1.5, **params})


def _cases(seed: int) -> list[Case]:
    some = {"shared.1": [0, 1], "experts.0": [0, 1]}
    frozen = {"shared.0": [0, 1, 2, 3], "shared.1": [0], "experts.0": [1], "experts.1": [1, 3]}
    one_side = {"experts.0": [0], "experts.1": [0]}
    none_at_all = {"shared.0": [0, 1], "shared.1": [0, 1], **one_side}
    narrow = dict.fromkeys(("shared.0", "experts.0"), "bfloat16")
    beside_wide = {"shared.0": "float32", "experts.1": "bfloat16"}
    return [
        clip_case("two copies over two", "values", 2, 2, seed, late=[3]),
        clip_case("three copies, float32", "values", 3, 1, seed, max_norm=0.5, dtype="float32"),
        clip_case("one copy over three", "values", 1, 3, seed, max_norm=7.0, buffer=True),
        clip_case("a bound of 0", "values", 1, 2, seed, max_norm=0.0),
        clip_case("other layouts, experts in one tensor", "turned", 1, 2, seed, turned="last"),
        clip_case("a small norm", "small", 2, 2, seed, scale=0.01),
        clip_case("no norm at all", "small", 1, 2, seed, scale=0.0),
        clip_case("without gradient", "missing", 2, 2, seed, missing=some, frozen=frozen),
        clip_case("a rank's experts without gradient", "missing", 1, 2, seed, missing=one_side),
        clip_case("a model without experts", "missing", 2, 1, seed, without="experts"),
        clip_case("a model of experts alone", "missing", 2, 1, seed, without="shared"),
        clip_case("a rank without experts", "missing", 1, 2, seed, bare=[1]),
        clip_case("a rank without any gradient", "missing", 1, 2, seed, missing=none_at_all),
        clip_case("float16, squares beyond its largest", "low", 2, 2, seed, dtype="float16", scale=300.0),
        clip_case(
            "float32 beside bfloat16",
            "low",
            1,
            2,
            seed,
            dtype="float32",
            scale=30.0,
            max_norm=60.0,
            dtypes=narrow,
        ),
        clip_case("float64 beside others", "low", 2, 1, seed, dtypes=beside_wide),
        clip_case("two jobs", "subgroup", 2, 1, seed, jobs=2),
        clip_case("alone, with tuples", "subgroup", 1, 1, seed, tuples=True),
    ]


def _place(case: Case, rank: int) -> int:
    """Where a rank is among those that share a copy of the experts."""
    return seats_of(case, rank).spread.index(rank)


def _shapes(case: Case, rank: int) -> Shapes:
    """Of the parameters of both kinds on a rank."""
    bare = _place(case, rank) in case.params.get("bare", [])
    return shapes_of(case, {**SHAPES, "experts": ()} if bare else SHAPES)


def _names(case: Case, rank: int) -> list[str]:
    """The parameters that have a gradient on a rank."""
    place, missing = _place(case, rank), case.params.get("missing", {})
    every_name = [
        f"{kind}.{number}" for kind, shapes in _shapes(case, rank).items() for number in range(len(shapes))
    ]
    return [name for name in every_name if place not in missing.get(name, [])]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each rank KIND.NUMBER.R: equal where ranks have the same parameter."""
    scale, inputs = case.params.get("scale", 1.0), dict[str, Tensor]()
    for rank in range(case.ranks):
        seats = seats_of(case, rank)
        for name in _names(case, rank):
            kind, _, number = name.partition(".")
            first = seats.everyone[0] if kind == "shared" else seats.replicas[0]
            known = inputs.get(f"{name}.{first}")
            shape = _shapes(case, rank)[kind][int(number)]
            fresh = (scale * drawn(case, generator, *shape)).to(dtype_of_gradient(case, name))
            inputs[f"{name}.{rank}"] = fresh if known is None else known.clone()
    if "above" in case.params:
        factor = case.params["above"] * case.params["max_norm"] / _norm(case, inputs, 0).item()
        return {name: factor * gradient for name, gradient in inputs.items()}
    return inputs


def _clip(rank: Rank) -> None:
    """Answers norm and KIND.NUMBER, the gradients afterwards; in a case "values" another model's are clipped
    before these are read, and answered is kept norm, the same norm after that. Recording all; fact norm: its
    dtype, or its type if that is no tensor.
    """
    sides, shapes, most = enter_grid(rank), _shapes(rank.case, rank.rank), rank.params["max_norm"]
    if rank.params.get("after_alone"):
        alone, others = enter_alone(rank), parameters_of(rank, shapes)
        rank.student.clip_grad_norm(others["shared"], others["experts"], most, alone, alone)
    owned = parameters_of(rank, shapes)
    if "earlier" in rank.params:
        for kind, _, number in (name.partition(".") for name in rank.params["earlier"]):
            owned[kind][int(number)].grad = None
        rank.student.clip_grad_norm(owned["shared"], owned["experts"], most, sides.everyone, sides.replicas)
        for kind, fresh in parameters_of(rank, shapes).items():
            for parameter, other in zip(owned[kind], fresh, strict=True):
                parameter.grad = other.grad
    with rank.recording("all"):
        norm = rank.student.clip_grad_norm(
            owned["shared"], owned["experts"], most, sides.everyone, sides.replicas
        )
    rank.answer("norm", torch.as_tensor(norm).double().reshape(()))
    rank.fact("norm", str(norm.dtype)[6:] if isinstance(norm, Tensor) else type(norm).__name__)
    if rank.case.kind == "values":
        others = other_parameters_of(rank, shapes)
        rank.student.clip_grad_norm(others["shared"], others["experts"], most, sides.everyone, sides.replicas)
        rank.answer("kept norm", torch.as_tensor(norm).double().reshape(()))
    for kind, parameters in owned.items():
        for number, parameter in enumerate(parameters):
            rank.answer(f"{kind}.{number}", parameter.grad)


# -- judges


def _norm(case: Case, inputs: Inputs, rank: int) -> Tensor:
    """Of the whole model's gradient: what every rank has once, and each expert of one copy once."""
    spread = seats_of(case, rank).spread
    owned = [(name, rank) for name in _names(case, rank) if name.startswith("shared")]
    owned += [(n, r) for r in spread for n in _names(case, r) if n.startswith("experts")]
    squares = [inputs[f"{name}.{owner}"].double().square().sum() for name, owner in owned]
    return torch.stack(squares).sum().sqrt()


def _right_norm(evidence: Evidence, answer: RankAnswer) -> Finding:
    expected = _norm(evidence.case, evidence.inputs, answer.rank)
    seen = answer.tensors.get("norm", torch.tensor(torch.nan))
    close = torch.allclose(expected, seen.double(), rtol=1e-4 if evidence.case.params.get("dtype") else 1e-5)
    told = f"norm {expected.item():.6g}: every number of the model once"
    return Finding(close, told, f"{seen.item():.6g}", answer.rank)


def _scaled(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        norm = _norm(evidence.case, evidence.inputs, answer.rank).item()
        most = evidence.case.params["max_norm"]
        factor = most / norm if norm > most else 1.0
        for name in _names(evidence.case, answer.rank):
            gradient = evidence.inputs[f"{name}.{answer.rank}"]
            wrong = clipped_difference(
                (gradient.double() * factor).to(gradient.dtype), answer.tensors.get(name)
            )
            yield Finding(wrong is None, f"gradient {name} times {factor:.4g}", wrong or "", answer.rank)
        made = sorted(set(answer.tensors) - {"norm", "kept norm", *_names(evidence.case, answer.rank)})
        told = "no gradient where there was none"
        yield Finding(not made, told, f"gradients of {', '.join(made)}", answer.rank)


def _norm_kept(evidence: Evidence) -> Iterator[Finding]:
    """What a call gave keeps its value in the next, which clips another model's gradients."""
    for answer in evidence.answers:
        if "norm" in answer.tensors:
            told = "the norm that a call gave, after another call"
            yield same(told, answer.tensors["norm"], answer, "kept norm")


def _norm_type(evidence: Evidence, answer: RankAnswer) -> Finding:
    """A tensor, and no narrower than the sum that travelled."""
    given = getattr(torch, answer.facts["norm"], None)
    if not isinstance(given, torch.dtype):
        return Finding(False, "the norm as a tensor", f"a {answer.facts['norm']}", answer.rank)
    sums = {call["dtype"] for call in answer.collectives.get("all", []) if call["dtype"]}
    widest = max((getattr(torch, dtype).itemsize for dtype in sums), default=0)
    told = f"a norm of the type in which squares are added up, {' and '.join(sorted(sums))}"
    return Finding(given.itemsize >= widest, told, answer.facts["norm"], answer.rank)


def _factors_apart(gradient: Tensor, scaled: Tensor) -> float:
    """How far apart the factors are, relative to the largest one, by which numbers were scaled."""
    factors = (scaled / gradient)[gradient != 0]
    if not len(factors) or not factors.any():
        return 0.0
    return ((factors.max() - factors.min()) / factors.abs().max()).item()


def _in_float64(evidence: Evidence) -> Iterator[Finding]:
    """Whether gradients in float64 were never in float32: the factor may have been."""
    for answer in evidence.answers:
        for name in _names(evidence.case, answer.rank):
            gradient, scaled = evidence.inputs[f"{name}.{answer.rank}"], answer.tensors.get(name)
            if gradient.dtype == torch.float64 and scaled is not None and scaled.shape == gradient.shape:
                apart = _factors_apart(gradient, scaled)
                told = f"all of gradient {name}, in float64, times one factor"
                yield Finding(apart < FACTORS_ALIKE, told, f"factors differ by {apart:.1e}", answer.rank)


BOTH = every(on_each(_right_norm), _scaled)
_ONE_NUMBER = on_each_in_company(sends_one_number)
RUN = Run(_clip, _inputs, own_names)
EXERCISE = Exercise(
    "12.clip-grad-norm",
    "One norm, each expert once",
    ("clip_grad_norm",),
    dict.fromkeys(("values", "turned", "small", "missing", "low", "subgroup"), RUN),
    _cases,
    (
        Property(
            "norm",
            "numbers",
            3,
            "The norm is that of the whole model's gradient, the same on every rank: a tensor of the type in"
            " which squares are added up.",
            "experts counted once for each copy, or what every rank has once for each rank",
            {"values": every(on_each(_right_norm), _norm_kept, on_each(_norm_type))},
        ),
        Property(
            "gradients",
            "numbers",
            2,
            "All gradients, of any layout, are scaled by max_norm / norm, which is 0 where max_norm is, and"
            " stay so when another model's are.",
            "experts scaled by the norm of their own rank: then copies and ranks drift apart; or a copy"
            " scaled that reshape made",
            {"values": every(_scaled, _in_float64), "turned": BOTH},
            {"low": _in_float64},
        ),
        Property(
            "messages",
            "mechanism",
            1,
            "One all-reduce of one number.",
            "one for each parameter, or one for each kind",
            {"values": _ONE_NUMBER},
            dict.fromkeys(("low", "missing", "small", "subgroup", "turned"), _ONE_NUMBER),
        ),
        Property(
            "small",
            "robustness",
            1,
            "A norm below max_norm, 0 too, leaves the gradients as they are.",
            "scaled up to max_norm, or divided by 0, also where max_norm is 0",
            {"small": BOTH},
        ),
        Property(
            "missing",
            "robustness",
            1,
            "What has no gradient is left out, what is frozen is not; a rank without experts, or gradients of"
            " them, takes part.",
            "a rank without experts, or gradients of them, leaves out the call that the others wait in, or"
            " sends another dtype",
            {"missing": BOTH},
        ),
        Property(
            "low-precision",
            "robustness",
            1,
            "Squares of 16-bit gradients are summed in 32 bits or more; float32 gradients stay float32's.",
            "float() before square(); the factor in the dtype of the first gradient",
            {"low": BOTH},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works where not all ranks of the job belong together, and on one rank alone.",
            "a call without group=",
            {"subgroup": every(BOTH, on_each(stays_in_job))},
        ),
    ),
    forbids=("torch.nn.utils.clip_grad_norm_",),
)
