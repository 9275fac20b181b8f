"""Interrupts, as when a notebook's cell is stopped: between backward passes, and in the middle of one."""

from __future__ import annotations

from torch import Tensor, nn


class Interrupted(KeyboardInterrupt):
    """Raised by the check: no subclass of Exception, as when a notebook's cell is stopped."""


def interrupted_at(parameter: nn.Parameter, loss: Tensor) -> None:
    """A backward that ends when it comes to the gradient of this parameter, when others may be there."""

    def interrupt(_: Tensor) -> None:
        raise Interrupted

    handle = parameter.register_hook(interrupt)
    try:
        loss.backward()
    finally:
        handle.remove()
