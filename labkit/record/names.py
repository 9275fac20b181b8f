"""What stands in for a function of torch is called as that is: messages name what the program called, and
not who watches it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import WRAPPER_ASSIGNMENTS
from typing import Any


def named_as(original: Any, stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with name, module and description of another."""
    for name in WRAPPER_ASSIGNMENTS:
        if hasattr(original, name):
            setattr(stand_in, name, getattr(original, name))
    return stand_in
