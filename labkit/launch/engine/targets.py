"""What a rank calls: a pickled function from a notebook, or a function of an importable module."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.launch.handover.request import PAYLOAD


def load_target(directory: Path, target: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function of a request, and its arguments. ImportError or AttributeError when it is not there."""
    if target == "payload":
        with open(directory / PAYLOAD, "rb") as file:
            function, args, kwargs = pickle.load(file)
        return function, args, kwargs
    return named(target), (str(directory),), {}


def named(target: str) -> Callable[..., Any]:
    """The function "module:function"."""
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
