"""Work of a fixed duration on a device: what kernels look like to the host, without the arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from labkit.devices.session import open_session
from labkit.torch_private import sleep_on_gpu


def busy(seconds: float, device: Any, name: str = "", kind: str = "compute") -> None:
    """Queue work of `seconds` on the device's current stream, and return at once.

    On a stand-in the device's timeline shows it under `name` and `kind`; on a GPU it spins that long.
    ValueError for the host, and for less than no time.
    """
    if not 0 <= seconds < math.inf:
        raise ValueError(f"expected seconds of work, 0 or more, found {seconds}")
    session = open_session()
    if session is None:
        _spin(seconds, torch.device(device))
    else:
        queues = session.machine.queues
        queues.current(queues.index_of(device)).add(seconds, name, kind)


class FixedTime(nn.Module):
    """Hands its input on, and keeps the input's device busy for a fixed time: forward, and again backward.

    Put after a layer, it stands for the layer's kernels on a machine whose cores could not show the overlap.
    """

    def __init__(self, forward_seconds: float, backward_seconds: float | None = None, name: str = "") -> None:
        super().__init__()
        self.forward_seconds, self.name = forward_seconds, name
        self.backward_seconds = 2 * forward_seconds if backward_seconds is None else backward_seconds

    def forward(self, x: Tensor) -> Tensor:
        """x as it is."""
        handed_on: Tensor = _FixedTime.apply(x, self)
        return handed_on


class _FixedTime(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, module: FixedTime) -> Tensor:
        ctx.module = module
        busy(module.forward_seconds, x.device, module.name, "forward")
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        busy(ctx.module.backward_seconds, grad.device, ctx.module.name, "backward")
        return grad, None


def _spin(seconds: float, device: torch.device) -> None:
    with torch.cuda.device(device):
        sleep_on_gpu(int(seconds * torch.cuda.clock_rate(device) * 1e6))
