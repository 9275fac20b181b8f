"""The checks of layers that are cut over a tensor-parallel group: how each is cut, fed, run and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.exercise import Case, Exercise, Finding, Inputs, Property, RankAnswer
from labkit.checks.rank import Rank
from labkit.checks.shared.sharded_evidence import Evidence
from labkit.checks.shared.sharded_layer import (
    STEPS,
    Split,
    change_blocks,
    drawn,
    dtype_of,
    groups_of,
    meet_uneven_sizes,
    use_layer,
)


class PlainMLP(nn.Module):
    """The unsharded MLP: what `TensorParallelMLP.from_mlp` is handed, and what it must equal."""

    def __init__(self, hidden: int, inner: int, dtype: torch.dtype):
        super().__init__()
        self.up = nn.Linear(hidden, inner, dtype=dtype)
        self.down = nn.Linear(inner, hidden, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


def _plain_linear(case: Case) -> nn.Module:
    first, last = case.params["sizes"]
    return nn.Linear(first, last, bias=case.params.get("bias", True), dtype=dtype_of(case))


def _plain_mlp(case: Case) -> nn.Module:
    hidden, inner = case.params["sizes"]
    return PlainMLP(hidden, inner, dtype_of(case))


COLUMN = Split(
    {"weight": 0, "bias": 0},
    input_dim=None,
    output_dim=-1,
    plain=_plain_linear,
    from_plain=lambda rank, full, group: rank.student.ColumnParallelLinear.from_linear(full, group),
)
GATHERED = replace(
    COLUMN,
    output_dim=None,
    from_plain=lambda rank, full, group: rank.student.ColumnParallelLinear.from_linear(
        full, group, gather_output=True
    ),
)
ROW = Split(
    {"weight": 1, "bias": None},
    input_dim=-1,
    output_dim=None,
    plain=_plain_linear,
    from_plain=lambda rank, full, group: rank.student.RowParallelLinear.from_linear(full, group),
)
MLP = Split(
    {"up.weight": 0, "up.bias": 0, "down.weight": 1, "down.bias": None},
    input_dim=None,
    output_dim=None,
    plain=_plain_mlp,
    from_plain=lambda rank, full, group: rank.student.TensorParallelMLP.from_mlp(full, group),
)


def _split_of(split: Split, case: Case) -> Split:
    return GATHERED if case.params["kind"].startswith("gather") else split


def _layer_inputs(split: Split) -> Callable[[Case, torch.Generator], Inputs]:
    def inputs(case: Case, generator: torch.Generator) -> Inputs:
        """Random parameters of the unsharded layer, and for each group its own x, grad_output and targets."""
        found: Inputs = {}
        for name, parameter in split.plain(case).named_parameters():
            found[f"full.{name}"] = drawn(case, generator, *parameter.shape) / parameter.shape[-1] ** 0.5
            found[f"noise.{name}"] = drawn(case, generator, case.ranks, *parameter.shape)
        first, last = case.params["sizes"]
        lead = (len(groups_of(case)), *case.params["lead"])
        for name in ("x", *(f"x{step}" for step in range(STEPS))):
            found[name] = drawn(case, generator, *lead, first)
        for name in ("grad_output", *(f"target{step}" for step in range(STEPS))):
            found[name] = drawn(case, generator, *lead, first if split is MLP else last)
        return found

    return inputs


def _layer_on_rank(split: Split) -> Callable[[Rank], None]:
    def on_rank(rank: Rank) -> None:
        match rank.params["kind"]:
            case "uneven":
                meet_uneven_sizes(rank, split)
            case "own-shard" | "gather-own-shard":
                change_blocks(rank, _split_of(split, rank.case))
            case _:
                use_layer(rank, _split_of(split, rank.case))

    return on_rank


def _judge_layer(split: Split) -> Callable[[Case, Inputs, list[RankAnswer]], Iterator[Finding]]:
    def judge(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
        evidence = Evidence(case, inputs, answers, _split_of(split, case))
        match case.params["kind"]:
            case "values":
                yield from evidence.values("forward-values", "output")
                yield from evidence.values("input-gradients", "input_grad")
                yield from evidence.values("parameter-gradients", "grad")
                yield from evidence.values("trained-weights", "trained")
                yield from _traffic(evidence, "communication")
                yield from evidence.stored()
            case "gather":
                yield from evidence.values("gather-output", "output", "input_grad", "grad")
                yield from _traffic(evidence, "gather-output")
            case "bias":
                yield from evidence.values("bias-once", "output", "grad.bias", "trained.bias")
            case "own-shard":
                yield from evidence.own_shard("own-shard-only")
            case "gather-own-shard":
                yield from evidence.own_shard("gather-output")
            case "uneven":
                yield from evidence.refusal()
            case "subgroup" | "gather-subgroup":
                yield from evidence.values("subgroup", "output")
                yield from evidence.within_group("subgroup")
            case "own-parts":
                yield from evidence.values("own-parts", "output", "input_grad", "grad", "trained")

    return judge


def _traffic(evidence: Evidence, property_name: str) -> Iterator[Finding]:
    """Forward: what makes the output whole. Backward: what makes the gradient of x whole."""
    split = evidence.split
    forward = {
        id(ROW): [("all_reduce", evidence.bytes_of("grad_output", None))],
        id(MLP): [("all_reduce", evidence.bytes_of("grad_output", None))],
        id(GATHERED): [("all_gather", evidence.bytes_of("grad_output", -1))],
    }.get(id(split), [])
    backward = [("all_reduce", evidence.bytes_of("x", None))] if split.input_dim is None else []
    yield from evidence.traffic(property_name, "forward", *forward)
    yield from evidence.traffic(property_name, "backward", *backward)


_LAYER_PROPERTIES = {
    "values": (
        "forward-values",
        "input-gradients",
        "parameter-gradients",
        "trained-weights",
        "communication",
        "stored-shards",
    ),
    "gather": ("gather-output",),
    "gather-own-shard": ("gather-output",),
    "gather-subgroup": ("subgroup",),
    "bias": ("bias-once",),
    "own-shard": ("own-shard-only",),
    "uneven": ("uneven-sizes",),
    "subgroup": ("subgroup",),
    "own-parts": ("own-parts",),
}


def layer_case(
    name: str, kind: str, ranks: int, lead: Sequence[int], sizes: tuple[int, int], seed: int, **params: Any
) -> Case:
    """A case of a layer. kind: a key of _LAYER_PROPERTIES. x is [*lead, sizes[0]]."""
    everything = {"kind": kind, "lead": list(lead), "sizes": list(sizes), **params}
    own_parts = kind == "own-parts"
    return Case(name, ranks, everything, seed, own_parts=own_parts, properties=_LAYER_PROPERTIES[kind])


def layer_exercise(
    exercise_id: str,
    title: str,
    name: str,
    split: Split,
    cases: Callable[[int], list[Case]],
    builds_on: Sequence[str],
    properties: list[Property],
) -> Exercise:
    """An exercise that asks for the layer called `name`, cut as `split` says."""
    return Exercise(
        exercise_id,
        title,
        (name,),
        tuple(properties),
        cases,
        _layer_inputs(split),
        _layer_on_rank(split),
        _judge_layer(split),
        builds_on=tuple(builds_on),
    )
