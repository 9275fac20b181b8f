"""How the layers of lesson 06 are cut over a tensor-parallel group, and what they send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Judge, Property, every
from labkit.checks.lesson_06.twice import steps_its_share
from labkit.checks.lesson_06.unasked import infers_its_share
from labkit.checks.shared.beside import STEPS, Call, stays_in_group
from labkit.checks.shared.places import place_of
from labkit.checks.shared.split import Drawn, Split, SplitEvidence, by_dims, dtype_of
from labkit.checks.shared.split_judges import EVERYTHING, does_its_share, equals, own_block_decides


class PlainMLP(nn.Module):
    """The unsharded MLP: what `TensorParallelMLP.from_mlp` is handed, and what it must equal. biases: which
    of its layers have one.
    """

    def __init__(self, hidden: int, inner: int, dtype: torch.dtype, biases: Sequence[str] = ("up", "down")):
        super().__init__()
        self.up = nn.Linear(hidden, inner, bias="up" in biases, dtype=dtype)
        self.down = nn.Linear(inner, hidden, bias="down" in biases, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


def _plain_linear(case: Case) -> nn.Module:
    first, last = case.params["sizes"]
    return nn.Linear(first, last, bias=case.params.get("bias", True), dtype=dtype_of(case))


def _plain_mlp(case: Case) -> nn.Module:
    hidden, inner = case.params["sizes"]
    return PlainMLP(hidden, inner, dtype_of(case), case.params.get("biases", ("up", "down")))


@dataclass(frozen=True)
class Layer(Split):
    """With biases of zeros where the case has `zero_bias`: many begin so, and must learn all the same. And
    where it has `zeros_on`, with zeros as that rank's part of x, in training too.
    """

    def inputs(self, case: Case, generator: torch.Generator) -> Inputs:
        """As ever, but for these."""
        found = super().inputs(case, generator)
        if case.params.get("zero_bias"):
            found |= {n: torch.zeros_like(t) for n, t in found.items() if n.endswith("bias")}
        if "zeros_on" in case.params:
            place = place_of(case, case.params["zeros_on"])
            for name, about in self.each_step(case).items():
                if name.startswith("x"):
                    place.block(found[name][place.index], about.cut).zero_()
        return found


def _linear_drawn(x: int | None, out: int | None) -> Callable[[Case], dict[str, Drawn]]:
    """x and the gradient of the output of a linear layer, divided along these dimensions."""

    def of_case(case: Case) -> dict[str, Drawn]:
        lead, (first, last) = case.params["lead"], case.params["sizes"]
        return {"x": _one_row_more(lead, first, x), "grad_output": Drawn((*lead, last), out)}

    return of_case


def _one_row_more(lead: Sequence[int], features: int, cut: int | None = None) -> Drawn:
    """[*lead, features], and in the last step one row more."""
    later = (lead[0] + 1, *lead[1:], features) if lead else ()
    return Drawn((*lead, features), cut, later=later)


def _mlp_drawn(case: Case) -> dict[str, Drawn]:
    whole = _one_row_more(case.params["lead"], case.params["sizes"][0])
    return {"x": whole, "grad_output": whole}


COLUMN = Layer(
    _plain_linear,
    lambda rank, full, group: rank.student.ColumnParallelLinear.from_linear(full, group),
    by_dims(weight=0, bias=0),
    _linear_drawn(x=None, out=-1),
)
GATHERED = replace(
    COLUMN,
    build=lambda rank, full, group: rank.student.ColumnParallelLinear.from_linear(
        full, group, gather_output=True
    ),
    drawn=_linear_drawn(x=None, out=None),
)
ROW = Layer(
    _plain_linear,
    lambda rank, full, group: rank.student.RowParallelLinear.from_linear(full, group),
    by_dims(weight=1, bias=None),
    _linear_drawn(x=-1, out=None),
)
MLP = Layer(
    _plain_mlp,
    lambda rank, full, group: rank.student.TensorParallelMLP.from_mlp(full, group),
    by_dims(**{"up.weight": 0, "up.bias": 0, "down.weight": 1, "down.bias": None}),
    _mlp_drawn,
)


def nothing(evidence: SplitEvidence) -> list[Call]:
    """No calls."""
    return []


def sum_of_output(evidence: SplitEvidence) -> list[Call]:
    """What makes a sum of partial outputs whole."""
    return [("all_reduce", evidence.bytes_of("grad_output"))]


def sum_of_gradient(evidence: SplitEvidence) -> list[Call]:
    """What makes the gradient of x whole."""
    return [("all_reduce", evidence.bytes_of("x"))]


def gather_of_output(evidence: SplitEvidence) -> list[Call]:
    """What joins the columns of the output."""
    return [("all_gather", evidence.bytes_of("grad_output") // place_of(evidence.case, 0).size)]


# Not the gradient of x: without f it is wrong in every group.
RIGHT_IN_GROUP: Judge = every(equals("output", "grad"), stays_in_group)


def any_layout(*kinds: str) -> Property:
    """The property that layers take tensors as they lie in memory, shown by these kinds of cases."""
    return Property(
        "any-layout",
        "robustness",
        1,
        "x and gradients that are not contiguous work.",
        "view() wants memory in order: use reshape() or flatten()",
        dict.fromkeys(kinds or ("layout",), EVERYTHING),
    )


def own_share() -> Property:
    """The property that a rank computes its part, from its block, and no more."""
    return Property(
        "own-shard-only",
        "mechanism",
        4,
        "A rank computes with its own block, never reads another's, and does a t-th of the products.",
        "the product was computed with the full weight, kept or gathered, and cut afterwards",
        {"own-shard": own_block_decides, "values": every(does_its_share, infers_its_share, steps_its_share)},
        {"layout": does_its_share, "subgroup": does_its_share},
    )


def sizes_refused(case: Case) -> Sequence[int]:
    """The numbers that a refusal must name: the size, and that of the rank's group."""
    return case.params["uneven"], place_of(case, 0).size


def layer_case(
    name: str, kind: str, ranks: int, lead: Sequence[int], sizes: tuple[int, int], seed: int, **params: Any
) -> Case:
    """A case of a layer. x is [*lead, sizes[0]]."""
    everything = {"lead": list(lead), "sizes": list(sizes), **params}
    return Case(name, ranks, everything, seed, kind=kind, own_parts=kind == "own-parts")


F_ID, G_ID = "06.copy-to-tensor-parallel", "06.reduce-from-tensor-parallel"
COLUMN_ID, ROW_ID = "06.column-parallel-linear", "06.row-parallel-linear"
GIVEN_LATER = tuple(
    f"labkit.tensor_parallel.{name}"
    for name in ("copy_to_ranks", "sum_over_ranks", "column_parallel", "row_parallel")
)
ANSWERS = ("tensor_parallel.py",)

THEIR_PART_OF = {
    "output": "Each rank's output is its part of the unsharded layer's output.",
    "input_grad": "Each rank's gradient of x is its part of the unsharded layer's.",
    "grad": "Each rank's parameter gradients are its blocks of the unsharded layer's.",
    "trained": f"After {STEPS} steps of SGD, each rank holds its blocks of the trained layer.",
}
