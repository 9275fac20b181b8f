"""Layers that take and return things in unusual ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Side(nn.Module):
    """Two linear layers side by side; the second is used where the caller says so."""

    def __init__(self, width: int):
        super().__init__()
        self.always = nn.Linear(width, width)
        self.sometimes = nn.Linear(width, width)

    def forward(self, x: Tensor, both: bool) -> Tensor:
        out = self.always(x)
        return out + self.sometimes(x) if both else out


class Detour(nn.Module):
    """A linear layer, or where the caller says so a copy of what it was given."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, used: bool) -> Tensor:
        return self.linear(x) if used else x.clone()


class Two(nn.Module):
    """Two inputs, and a dict of outputs, which is nested itself: one in a list, one in a tuple, one that
    nobody uses.
    """

    def __init__(self, width: int, nesting: str):
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.nesting = nesting

    def forward(self, x: Tensor, *, y: Tensor) -> Any:
        left = self.left(x)
        found = {"sum": [left + self.right(y)], "left": (torch.tanh(self.left(x)),), "unused": [left - x]}
        return nested(self.nesting, found)


class Through(nn.Module):
    """Returns the tensor that it is given, nested as it came, beside one that nobody uses."""

    def __init__(self, nesting: str):
        super().__init__()
        self.nesting = nesting

    def forward(self, given: Any) -> dict[str, Any]:
        x = taken_out(self.nesting, given)
        return {"given": nested(self.nesting, x), "beside": x * x}


class Kept(nn.Module):
    """Returns a tensor that it is given nested, by position or by keyword."""

    def __init__(self, nesting: str):
        super().__init__()
        self.nesting = nesting

    def forward(self, *by_position: Any, **by_keyword: Any) -> Any:
        (held,) = (*by_position, *by_keyword.values())
        return taken_out(self.nesting, held)


def nested(nesting: str, inner: Any) -> Any:
    """`inner` in lists, tuples and dicts, one in the other: a letter for each, from the outermost on."""
    for kind in reversed(nesting):
        inner = {"l": [inner], "t": (inner,), "d": {"inner": inner}}[kind]
    return inner


def taken_out(nesting: str, outer: Any) -> Any:
    """What was nested so."""
    for kind in nesting:
        outer = outer["inner"] if kind == "d" else outer[0]
    return outer
