"""Passes that end in an error, as those do that run out of memory."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn


class PassFailed(Exception):
    """What a pass ends with that is made to fail."""


def fail(model: nn.Module, layer: nn.Module, x: Tensor) -> None:
    """Forward passes that end in an error of this layer. The first is without gradients, and the weights are
    others than afterwards: what such a pass leaves behind would be seen.
    """
    hook = layer.register_forward_hook(_FailsFrom(0))
    _scale(model, 2)
    for with_gradients in (False, True):
        with torch.set_grad_enabled(with_gradients), contextlib.suppress(PassFailed):
            model(x.clone())
    hook.remove()
    _scale(model, 0.5)


def fail_in_backward(model: nn.Module, layer: nn.Module, x: Tensor) -> None:
    """The same in the backward of a pass, where this layer runs for the second time, if it does."""
    hook = layer.register_forward_hook(_FailsFrom(1))
    _scale(model, 2)
    with contextlib.suppress(PassFailed):
        model(x.clone()).sum().backward()
    hook.remove()
    model.zero_grad()
    _scale(model, 0.5)


class _FailsFrom:
    """A hook that lets so many runs of a layer end well."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if self.left < 0:
            raise PassFailed


@torch.no_grad()
def _scale(model: nn.Module, factor: float) -> None:
    """Of each weight, once no copy of it is under way."""
    torch.cuda.synchronize()
    for parameter in model.parameters():
        parameter.mul_(factor)
