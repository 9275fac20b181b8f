"""Whether a unit of stage 3 begins its work while what is fetched ahead cannot come yet."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.exercise import Evidence, Finding
from labkit.checks.rank import Rank
from labkit.torch_private_distributed import job_store

PATIENCE = 10.0  # seconds; a forward of such a stack takes hundredths


def hold_back(rank: Rank, sharded: Any, net: nn.Sequential, x: Tensor) -> None:
    """A forward in which all ranks but the first stay in a unit in the middle, where they have begun to
    gather as many more as are fetched ahead, until the first is at work in the next unit. It can be: that one
    has been gathered, and for those behind it nobody has to wait yet. Who waits for them there, in whatever
    way, waits for the other ranks. Fact: stalled, whether the others gave up, after PATIENCE.
    """
    name, number = f"labkit: a unit of {rank.group.group_name}", len(net) // 2
    stalled = []

    def tell(*_: object) -> None:
        job_store().set(name, "")

    def stay(*_: object) -> None:
        try:
            job_store().wait([name], timedelta(seconds=PATIENCE))
        except dist.DistStoreError:  # the time is over
            stalled.append(True)

    first = rank.rank == 0
    inner = next(net[number if first else number - 1].children())
    hook = inner.register_forward_pre_hook(tell if first else stay)
    dist.barrier(rank.group)
    with torch.no_grad():
        sharded(x)
    hook.remove()
    rank.fact("stalled", bool(stalled))


def goes_on_alone(evidence: Evidence) -> Iterator[Finding]:
    """The first rank came to the next unit while the others stayed in the one before."""
    if evidence.case.params["prefetch"]:
        stalled = any(answer.facts["stalled"] for answer in evidence.answers)
        told = "a unit at work while the others have not begun to send what is fetched ahead"
        yield Finding(not stalled, told, f"it stood still until they went on, {PATIENCE:g} s later", 0)
