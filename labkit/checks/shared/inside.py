"""Inputs as a layer inside a model gets them: what the layer before has given, which is no leaf of autograd's
graph. Where a mechanism is looked at with leaves alone, one that is there for leaves alone passes.
"""

from __future__ import annotations

from torch import Tensor


def as_inside(leaf: Tensor) -> Tensor:
    """The same numbers, lying in memory as the leaf's do, given by an operation: gradients reach the leaf."""
    return leaf * 1.0
