"""What is imported before a trainer is weighed. With the first of torch's optimizers comes its compiler:
hundreds of modules, whose numbers and texts are no part of the trainer that made it.
"""

from __future__ import annotations

from types import CodeType, FunctionType

import torch
from torch import nn

from labkit.checks.shared.named import named_objects

_OPTIMIZERS = {"optim", *(name for name in dir(torch.optim) if not name.startswith("_"))}


def import_what_optimizers_need() -> None:
    """Where the notebook's functions may make one: for the others it would be seconds for nothing."""
    functions = (thing for thing in named_objects() if isinstance(thing, FunctionType))
    if any(_names(function.__code__) & _OPTIMIZERS for function in functions):
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)


def _names(code: CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(_names, inner))
