"""Hooks that are left where nothing lists them, such as on the nodes that add gradients up: found by what
runs in a backward pass.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType

from torch import Tensor

Loss = Callable[[], Tensor]


def run_by_backward(loss: Loss, fresh: Loss) -> int:
    """How many functions of Python the backward pass of a loss runs that the same one of a fresh model does
    not.
    """
    _entered(fresh())  # what runs for the first time imports and caches
    before = _entered(fresh())
    return max(0, _entered(loss()) - before)


def _entered(loss: Tensor) -> int:
    """Functions of Python that its backward pass calls. Nothing may be collected meanwhile: that calls some
    too.
    """
    entered = 0

    def count(frame: FrameType, event: str, given: object) -> None:
        nonlocal entered
        entered += event == "call"

    gc.disable()
    sys.setprofile(count)
    try:
        loss.backward()
    finally:
        sys.setprofile(None)
        gc.enable()
    return entered
