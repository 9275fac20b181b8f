"""The job of `09.train-3d`: the whole model, and which of its numbers are whose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.shared.beside import State
from labkit.checks.shared.cuts import cut_block, cut_rows, put_under
from labkit.checks.shared.split import dtype_of, under
from labkit.model import Transformer, explicit_attention, gpt
from labkit.theory.grid import placement  # an empty file where this lesson is graded: judges alone call it
from labkit.theory.pipeline import layers_of_stages

STEPS = 3  # of a training, if its case does not say another number
REPEATS = 2  # of a training of the larger model: the least that one of them keeps is what counts
SHARP = 4.0  # times the table: losses of other tokens are far apart


def plain_model(case: Case) -> Transformer:
    """The whole model, in float64 if the case does not say another dtype."""
    p = case.params
    config = gpt(
        p["layers"],
        p["hidden"],
        p["heads"],
        vocabulary=p["vocabulary"],
        max_sequence=p["sequence"] + 1,
        dropout=p["dropout"],
        tied_embeddings=p["tied"],
    )
    return Transformer(config, explicit_attention).to(dtype_of(case))


def steps_of(case: Case) -> int:
    """How many steps are trained."""
    return int(case.params.get("steps", STEPS))


def larger_case(case: Case) -> Case:
    """The training of the larger model."""
    return replace(case, params={**case.params, **case.params["larger"]})


def larger_inputs(case: Case, time: int) -> Inputs:
    """What it is made of, each time: "full.NAME", ids and targets [steps, B, s]. Both sides draw it: it is
    megabytes for every rank.
    """
    generator, found = torch.Generator().manual_seed(case.seed * REPEATS + time), Inputs()
    for name, parameter in plain_model(case).named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        flat = parameter.dim() == 1
        found[f"full.{name}"] = 1.0 + noise / 10 if flat else noise / parameter.shape[-1] ** 0.5
    found["full.tokens.weight"] *= SHARP
    shape = (steps_of(case), case.params["sizes"]["dp"] * case.params["rows"], case.params["sequence"])
    for name in ("ids", "targets"):
        found[name] = torch.randint(case.params["vocabulary"], shape, generator=generator)
    return found


def asked_in(case: Case, step: int) -> tuple[int, float, float]:
    """Micro-batches, learning rate and largest norm of a step: the second has others than the first."""
    p, other = case.params, step == 1
    micro_batches, max_norm = p["micro_batches"] - other, p["max_norm"] * (1 + 2 * other)
    if step == steps_of(case) - 1:
        max_norm = p.get("last_max_norm", max_norm)
    return micro_batches, p["learning_rate"] * (1 + other), max_norm


def size_of(case: Case, step: int) -> tuple[int, int]:
    """Rows of a replica, and tokens of a row: the second step may have fewer."""
    params = {**case.params, **(case.params.get("second", {}) if step == 1 else {})}
    return params["rows"], params["sequence"]


def rows_in(case: Case, step: int, drawn: Tensor) -> Tensor:
    """What a step takes of the rows that were drawn for it, of one replica or of several: [B, s]."""
    rows, tokens = size_of(case, step)
    return drawn.unflatten(0, (-1, case.params["rows"]))[:, :rows, :tokens].flatten(0, 1)


@dataclass(frozen=True)
class Spot:
    """A rank's place: its stage, replica, position among tensor-parallel ranks, and groups."""

    stage: int
    num_stages: int
    replica: int
    position: int
    size: int
    layers: range
    tied: bool
    groups: Mapping[str, list[int]]
    tied_pair: list[int]

    @property
    def first(self) -> bool:
        return self.stage == 0

    @property
    def last(self) -> bool:
        return self.stage == self.num_stages - 1

    @property
    def copies_table(self) -> bool:
        """Whether this stage has the second copy of a tied table."""
        return self.tied and self.last and not self.first

    def whole(self, full: Mapping[str, Tensor]) -> State:
        """The entries of this stage in a state of the whole model, by name; a tied copy is head.weight."""
        found: State = {}
        if self.first:
            found |= {name: full[name] for name in ("tokens.weight", "positions.weight")}
        for layer in self.layers:
            found |= {n: t for n, t in full.items() if n.startswith(f"blocks.{layer}.")}
        if self.last:
            found |= {n: t for n, t in full.items() if n.startswith("norm.")}
            if self.copies_table:
                found["head.weight"] = full["tokens.weight"]
            elif not self.tied:
                found["head.weight"] = full["head.weight"]
        return found

    def cut(self, full: Mapping[str, Tensor]) -> State:
        """What this rank holds of a state of the whole model."""
        found, at = self.whole(full), (self.position, self.size)
        part = {n: t for n, t in found.items() if n.startswith(("positions.", "norm."))}
        for name in ("tokens.weight", "head.weight"):
            if name in found:
                part[name] = cut_rows(found[name], *at)
        for layer in self.layers:
            prefix = f"blocks.{layer}."
            part |= put_under(prefix, cut_block(under(prefix, found), *at))
        return part


def spot_of(case: Case, rank: int) -> Spot:
    """A rank's place."""
    sizes, order = case.params["sizes"], case.params["order"]
    at = placement.coordinates_of(rank, sizes, order)
    counts = layers_of_stages(case.params["layers"], sizes["pp"])
    first = sum(counts[: at["pp"]])
    groups = {axis: _own_group(case, rank, axis) for axis in order}
    return Spot(
        at["pp"],
        sizes["pp"],
        at["dp"],
        at["tp"],
        sizes["tp"],
        range(first, first + counts[at["pp"]]),
        case.params["tied"],
        groups,
        sorted({groups["pp"][0], groups["pp"][-1]}),
    )


def _own_group(case: Case, rank: int, axis: str) -> list[int]:
    groups = placement.groups_along(axis, case.params["sizes"], case.params["order"])
    return next(members for members in groups if rank in members)
