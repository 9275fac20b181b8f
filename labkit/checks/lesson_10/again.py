"""A model that has been trained before, and is trained again: what that leaves must not count."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_10.each_call import written_down
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of

CALLS = ("training", "again")  # recordings of two calls on a model, of a step each
WHOLE_JOB_STEPS = 1  # before them, by all ranks together: what was learned of that group must not count


def leave_gradients(module: nn.Module) -> None:
    """Ones for gradients, as if of training before: no program may add to them."""
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)


def train_again(rank: Rank, own: dist.ProcessGroup, step: Callable[[int, dist.ProcessGroup], None]) -> None:
    """Calls `step(number, group)`: first in the whole job, which nobody records, then for each of `CALLS` in
    the rank's own group. Recordings, and acts, of `CALLS`.
    """
    for number in range(WHOLE_JOB_STEPS):
        step(number, rank.group)
    for number, recording in enumerate(CALLS, start=WHOLE_JOB_STEPS):
        with written_down(rank, recording):
            step(number, own)


def hooks_on(*modules: nn.Module) -> int:
    """How many hooks are on modules, their parts and their parameters: what torch has them in are dicts."""
    owners = [owner for module in modules for owner in (*module.modules(), *module.parameters())]
    kept = (getattr(owner, name) for owner in owners for name in dir(owner) if name.endswith("_hooks"))
    return sum(len(hooks) for hooks in kept if isinstance(hooks, dict))


def no_hook_is_left(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Whether the fact `hooks`, how many there were in the end, is none: one that does nothing is one too."""
    hooks = answer.facts["hooks"]
    return Finding(hooks == 0, "no hook on the model in the end", f"{hooks} hooks", answer.rank)


def leaves_no_hook(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Whether the second of `CALLS` sends no more than the first: a hook that was left sends there too."""
    first, second = (sum(num_bytes for _, num_bytes in calls_of(answer, name)) for name in CALLS)
    told = f"a second call on the model sends as much as the first, {first:,} bytes in a step"
    return Finding(second <= first, told, f"{second:,} bytes", answer.rank)
