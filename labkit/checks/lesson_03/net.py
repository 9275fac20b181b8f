"""The model, data and reference of lesson 03's checks: replicas of a small net, each with rows of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.rank import Rank
from labkit.checks.shared.places import groups_of, place_of

LEARNING_RATE = 0.1
STEPS = 2
MICRO_BATCHES = 3


class Net(nn.Module):
    """Three linear layers, one beside them that only some ranks use, and buffers of two kinds."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.first = nn.Linear(width, inner)
        self.second = nn.Linear(inner, inner + 1, bias=False)
        self.last = nn.Linear(inner + 1, width)
        self.aside = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, use_aside: bool = True) -> Tensor:
        out = self.last(torch.tanh(self.second(torch.tanh(self.first(x))))) * self.scale
        return out + self.aside(x) if use_aside else out


def net_of(case: Case) -> Net:
    """The case's net in float64, not yet with the case's weights."""
    return Net(case.params["width"], case.params["inner"]).double()


def net_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Every rank's state ("state.R.NAME"), and rows and targets by step, rank and micro-batch."""
    found: Inputs = {}
    for rank in range(case.ranks):
        for name, tensor in net_of(case).state_dict().items():
            drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            found[f"state.{rank}.{name}"] = drawn if tensor.is_floating_point() else (drawn * 100).long()
    shape = (STEPS, case.ranks, MICRO_BATCHES, case.params["rows"], case.params["width"])
    return found | {n: torch.randn(shape, generator=generator, dtype=torch.float64) for n in ("x", "target")}


def own_net(case: Case, inputs: Inputs, rank: int) -> Net:
    """The net with the state that `rank` starts from."""
    net = net_of(case)
    prefix = f"state.{rank}."
    net.load_state_dict(
        {n.removeprefix(prefix): t.clone() for n, t in inputs.items() if n.startswith(prefix)}
    )
    return net


def first_net(case: Case, inputs: Inputs, rank: int) -> Net:
    """The net with the state of the first rank of `rank`'s group, which all replicas should have."""
    return own_net(case, inputs, place_of(case, rank).members[0])


def uses_aside(case: Case, rank: int) -> bool:
    """Whether this rank's forward uses the layer beside: `aside` lists the ranks; all of them without it."""
    return rank in case.params.get("aside", range(case.ranks))


def loss_of(
    model: nn.Module, case: Case, inputs: Inputs, step: int, rank: int, micro_batch: int = 0
) -> Tensor:
    """The mean squared error of one micro-batch of one rank."""
    out = model(inputs["x"][step, rank, micro_batch], uses_aside(case, rank))
    return F.mse_loss(out, inputs["target"][step, rank, micro_batch])


def step_plainly(net: nn.Module) -> None:
    """One step of plain SGD; the gradients are gone afterwards."""
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.sub_(LEARNING_RATE * parameter.grad)
                parameter.grad = None


def reference_gradients(
    net: Net, case: Case, inputs: Inputs, step: int, rank: int, batches: Sequence[int] = (0,)
) -> None:
    """Leave in `net` the gradients of the mean loss over the group of `rank` and over these micro-batches."""
    members = place_of(case, rank).members
    losses = [loss_of(net, case, inputs, step, r, m) for r in members for m in batches]
    (torch.stack(losses).sum() / len(members)).backward()


def send_gradients(rank: Rank, net: nn.Module, prefix: str = "grad") -> None:
    """Answer with every parameter's gradient as "PREFIX.NAME"; zeros where there is none."""
    for name, parameter in net.named_parameters():
        rank.answer(
            f"{prefix}.{name}", torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        )


def send_state(rank: Rank, net: nn.Module, prefix: str) -> None:
    """Answer with every parameter and buffer as "PREFIX.NAME"."""
    for name, tensor in net.state_dict().items():
        rank.answer(f"{prefix}.{name}", tensor)


__all__ = ["groups_of", "place_of"]
