"""A GPT on divided sequences: its cases, where each rank stands, and what it is handed.

Each rank is handed the whole model with noise in the blocks of other tensor-parallel ranks, and of its own
replica's rows its own tokens alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.lesson_11.losses import IGNORED
from labkit.checks.lesson_11.partial import PATIENCE
from labkit.checks.lesson_11.tokens import zigzag
from labkit.checks.shared.beside import STEPS, State
from labkit.checks.shared.cuts import cut_block, put_under
from labkit.checks.shared.split import drawn, dtype_of, numbers_taken, under
from labkit.model import Transformer, explicit_attention, gpt

AXES = ("dp", "cp", "tp")
USUAL: Mapping[str, Any] = {
    "layers": 2,
    "hidden": 8,
    "heads": 4,
    "vocabulary": 11,
    "sequence": 12,
    "longest": 16,
    "rows": 2,
    "tied": True,
    "by_hand": False,
    "apart": False,
    "evaluated": False,
    "zeroed": False,
}


def gpt_case(name: str, kind: str, dp: int, cp: int, tp: int, seed: int, **params: Any) -> Case:
    """A job of dp x cp x tp ranks, neighbours along tp. rows: of each replica. longest: of the model's
    sequences. dtype: of the model, float64 where none is said. by_hand: the head is tied, and the config
    does not say so. apart: neighbours are along dp before cp. evaluated: the whole model is handed over in
    evaluation mode. zeroed: between steps gradients become zeros, not None.
    """
    settings = {**USUAL, "sizes": {"dp": dp, "cp": cp, "tp": tp}, **params}
    own = kind == "own-parts"
    return Case(name, dp * cp * tp, settings, seed, kind=kind, own_parts=own, timeout=PATIENCE)


def gpt_cases(seed: int) -> list[Case]:
    """The visible cases."""
    return [
        gpt_case("dp 2, cp 2", "values", 2, 2, 1, seed, late=[1]),
        gpt_case("cp 3, untied", "values", 1, 3, 1, seed, tied=False, layers=1, rows=3, dtype="float32"),
        gpt_case("dp 2, cp 1, tied by hand", "values", 2, 1, 1, seed, layers=1, by_hand=True),
        gpt_case("cp 2, tp 2", "tensor", 1, 2, 2, seed),
        gpt_case("a rank without targets", "without", 1, 2, 1, seed, sequence=8),
        gpt_case("all parts your own", "own-parts", 1, 2, 1, seed, hidden=12, heads=2),
    ]


# -- who has what


@dataclass(frozen=True)
class Spot:
    """A rank's coordinates, and the members of its groups."""

    replica: int
    piece: int  # position in the context group
    part: int  # position in the tensor group
    context: list[int]
    tensor: list[int]
    batch: list[int]

    def cut(self, full: Mapping[str, Tensor]) -> State:
        """A whole state as this rank has it: blocks cut over the tensor group, all else whole."""
        found = {name: t for name, t in full.items() if not name.startswith("blocks.")}
        for layer in sorted({name.split(".")[1] for name in full if name.startswith("blocks.")}):
            prefix = f"blocks.{layer}."
            found |= put_under(prefix, cut_block(under(prefix, full), self.part, len(self.tensor)))
        return found

    def own(self, case: Case, rows: Tensor) -> Tensor:
        """This rank's tokens of its replica's rows, of [..., B, s]."""
        tokens = zigzag(case.params["sequence"], self.piece, len(self.context))
        return rows.chunk(case.params["sizes"]["dp"], -2)[self.replica][..., tokens].contiguous()


def grid_of(case: Case) -> Tensor:
    """Ranks as [dp, cp, tp]."""
    dp, cp, tp = (case.params["sizes"][axis] for axis in AXES)
    ranks = torch.arange(case.ranks)
    return ranks.view(cp, dp, tp).transpose(0, 1) if case.params["apart"] else ranks.view(dp, cp, tp)


def spot_of(case: Case, rank: int) -> Spot:
    """Where a rank stands."""
    grid = grid_of(case)
    replica, piece, part = (grid == rank).nonzero()[0].tolist()
    members = grid[replica, :, part], grid[replica, piece], grid[:, :, part].flatten()
    return Spot(replica, piece, part, *(ranks.tolist() for ranks in members))


def plain_model(case: Case) -> Transformer:
    """The whole model, in the case's dtype."""
    p = case.params
    shape = gpt(p["layers"], p["hidden"], p["heads"], p["vocabulary"], p["longest"], dropout=0.0)
    by_config = p["tied"] and not p["by_hand"]
    model = Transformer(shape.but(tied_embeddings=by_config), explicit_attention).to(dtype_of(case))
    if p["by_hand"]:
        model.head.weight = model.tokens.weight
    return model


def gpt_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Parameters, noise for each rank's copy of them, and rows for all steps: [steps, B, s]. A sixth of the
    targets is ignored; of kind "without" all those of the first rank.
    """
    found: Inputs = {}
    for name, tensor in plain_model(case).named_parameters():
        found[f"full.{name}"] = drawn(case, generator, *tensor.shape) / tensor.shape[-1] ** 0.5
        found[f"noise.{name}"] = drawn(case, generator, case.ranks, *tensor.shape)
    shape = (STEPS, case.params["sizes"]["dp"] * case.params["rows"], case.params["sequence"])
    for name in ("ids", "targets"):
        found[name] = torch.randint(case.params["vocabulary"], shape, generator=generator)
    found["targets"][torch.rand(shape, generator=generator) < 1 / 6] = IGNORED
    if case.kind == "without":
        first = spot_of(case, 0)
        found["targets"][..., zigzag(case.params["sequence"], 0, len(first.context))] = IGNORED
    return found


def hand_part(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """What a rank is handed."""
    spot, full = spot_of(case, rank), under("full.", inputs)
    found = {name: spot.own(case, inputs[name]) for name in ("ids", "targets")}
    for name, own in numbers_taken(full, spot.cut).items():
        found[f"full.{name}"] = torch.where(own, full[name], inputs[f"noise.{name}"][rank])
    return found
