"""Submissions that try to win points they have not earned, to see what they may not, or to harm the machine.

Each stands in for the exercise `06.copy-to-tensor-parallel`, whose backward must sum over the ranks. None
of them does that; what they do instead must not earn more than doing nothing does.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

EXERCISE = "06.copy-to-tensor-parallel"
FOUND = "found-of-an-earlier-job"  # what is raised by code that finds what it has left

HEAD = """
import torch
import torch.distributed as dist
"""

# What every attack starts from: right in forward, and in backward it sends nothing.
IDLE = """
class CopyToTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        {attack}
        return grad_output, None
"""


@dataclass(frozen=True)
class Attack:
    """One hostile submission. backward: what it does in backward, on every rank; above: what stands before
    the class.

    flagged: a person must be told of it. right_numbers: it gets the sum some other way, and so what that is
    worth, but not what communicating is worth. lacks: what it ends for want of, in the error's words. Any
    other error about a name is this file's own mistake, and what was to be tried was not.
    """

    id: str
    says: str
    backward: str = "pass"
    above: str = ""
    flagged: bool = False
    right_numbers: bool = False
    communicates: bool = False  # in the visible case, as the exercise asks
    both: bool = False  # is for two jobs: the visible case's, then the unseen one's
    hidden_only: bool = False  # is about the unseen case
    lacks: str = ""

    @property
    def source(self) -> str:
        """The cell that is handed in."""
        body = textwrap.dedent(self.backward).strip().replace("\n", "\n        ")
        return f"{HEAD}\n{textwrap.dedent(self.above)}\n{IDLE.format(attack=body)}"
