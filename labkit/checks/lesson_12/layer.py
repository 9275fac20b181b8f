"""A layer of experts in one process: what is computed, without anything being sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from labkit.checks.lesson_12.reference import routed

PARTS = ("up", "up_bias", "down", "down_bias")  # of an expert


def make_experts(state: Mapping[str, Tensor]) -> list[nn.Module]:
    """As many experts as the tensors have first entries: up, tanh, down."""
    experts: list[nn.Module] = []
    for up, up_bias, down, down_bias in zip(*(state[part] for part in PARTS), strict=True):
        first, second = nn.Linear(up.shape[1], up.shape[0]), nn.Linear(down.shape[1], down.shape[0])
        for linear, weight, bias in ((first, up, up_bias), (second, down, down_bias)):
            linear.weight, linear.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        experts.append(nn.Sequential(first, nn.Tanh(), second))
    return experts


class Whole(nn.Module):
    """All experts in one process: what is computed, without anything being sent."""

    def __init__(self, router: Tensor, experts: Sequence[nn.Module], active: int):
        super().__init__()
        self.router, self.experts, self.active = nn.Parameter(router.clone()), nn.ModuleList(experts), active

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, h] -> [n, h]: every expert on every token, times its gate or 0."""
        found = routed(tokens, self.router, self.active)
        gates = torch.zeros_like(found.probabilities).scatter(1, found.experts, found.gates)
        outs = torch.stack([expert(tokens) for expert in self.experts], dim=1)
        return (outs.to(gates.dtype) * gates.unsqueeze(-1)).sum(1).to(tokens.dtype)
