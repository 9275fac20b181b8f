"""bf16 weights whose fp32 masters are stepped, in stages 1 and 3: changes too small for the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.shared.split import drawn

BF16_STEPS = 60
AWAY = 2048.0  # what cancels over two steps, beside which bf16 holds no number of the size of a slope
PARTS = 3  # of the weights, where a case has groups: the middle one learns at half the rate
ALIKE = 64.0  # the same over micro-batches
ROOM = 2**-12  # relative, for what fp32 does not hold


def bf16_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """w, the same on every rank; slope, [ranks, 2, micro-batches, size], of even and of odd steps, whose mean
    over the ranks bf16 could not hold, nor a third of each rank's, nor the sum over the micro-batches where
    there are several.
    """
    w = drawn(case, generator, case.params["size"]).expand(case.ranks, -1)
    slope = drawn(case, generator, case.ranks, 2, case.params["micro_batches"], case.params["size"])
    slope[0, 0] += AWAY
    for rank, part in [(0, 1.0)] if case.ranks == 1 else [(0, 0.75), (1, 0.25)]:  # thirds are rounded unlike
        slope[rank, 1] -= part * AWAY
    if case.params["micro_batches"] > 1:
        slope[:, :, 0], slope[:, :, -1] = ALIKE + slope[:, :, 0], slope[:, :, -1] - ALIKE
    return {"w": w.to(_weights_dtype(case)), "slope": slope.to(_weights_dtype(case))}


def _weights_dtype(case: Case) -> torch.dtype:
    return getattr(torch, case.params["weights"])


class Slopes(nn.Module):
    """A unit whose gradient is what it is given."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, slope: Tensor) -> Tensor:
        return (self.weight * slope).sum()


class TwoSlopes(nn.Module):
    """Two such units, each with a part of the numbers."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.units = nn.ModuleList(Slopes(part) for part in weight.chunk(2))

    def forward(self, slope: Tensor) -> Tensor:
        parts = zip(self.units, slope.chunk(2), strict=True)
        return torch.stack([unit(part) for unit, part in parts]).sum()


def rates(case: Case) -> Tensor:
    """The learning rate of each number."""
    found = torch.full((case.params["size"],), float(case.params["lr"]), dtype=torch.float64)
    if case.params.get("groups_of_rates"):
        found.chunk(PARTS)[1].div_(2)
    return found


def masters_are_kept(evidence: Evidence) -> Iterator[Finding]:
    """The weights are what fp32 arithmetic gives, rounded to their dtype at the end: within half a unit of
    its last place.
    """
    dtype, name = _weights_dtype(evidence.case), evidence.case.params["weights"]
    half_a_unit = torch.finfo(dtype).eps / 2 + ROOM
    weight = evidence.inputs["w"][0].double()
    slope = evidence.inputs["slope"].double().mean(0).mean(0).sum(0)
    expected = weight - BF16_STEPS * rates(evidence.case) * slope
    for answer in evidence.answers:
        seen = answer.tensors["weights 0.w"]
        if seen.dtype != dtype or seen.shape != expected.shape:
            told = f"{name} weights of shape {list(expected.shape)}"
            yield Finding(False, told, f"{seen.dtype}, {list(seen.shape)}", answer.rank)
            continue
        error = (seen.double() - expected).abs() / expected.abs().clamp(min=0.05)
        worst = int(error.argmax())
        told = f"element {worst} after {BF16_STEPS} steps: {expected[worst]:.5f}, rounded to {name}"
        yield Finding(bool(error.max() < half_a_unit), told, f"{seen[worst].item():.5f}", answer.rank)


def bf16_case(
    name: str,
    ranks: int,
    seed: int,
    size: int,
    micro_batches: int = 1,
    dtype: str = "bfloat16",
    **params: Any,
) -> Case:
    """Weights in bf16 (or float16), and steps too small for them. groups_of_rates: in two groups; frozen:
    where stage 1 is handed a frozen one too, "first", "last" or "alone".
    """
    sizes = {"size": size, "lr": 1e-4, "micro_batches": micro_batches, "weights": dtype, **params}
    return Case(name, ranks, sizes, seed, kind="bf16", timeout=40.0)
