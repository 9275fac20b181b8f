"""What the tests run on several nodes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.record import span


def sum_of_ranks(start: int, group: dist.ProcessGroup) -> tuple[float, str]:
    """The sum over ranks of start + rank, and the node this ran on."""
    print(f"{os.environ['SLURMD_NODENAME']} speaks", flush=True)
    x = torch.tensor(float(start + dist.get_rank()))
    with span("adding", kind="forward"):
        dist.all_reduce(x, group=group)
    return float(x), os.environ["SLURMD_NODENAME"]


def rank_3_fails() -> None:
    if dist.get_rank() == 3:
        raise ValueError("no good")
    dist.barrier()


def rank_2_leaves() -> None:
    if dist.get_rank() != 2:
        dist.barrier()


def forever() -> None:
    print("ready", flush=True)
    time.sleep(300)


def forever_together() -> None:
    """As a training does: a little work, then a call that needs everybody."""
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
        dist.barrier()


def meets_when_told(go: str) -> float:
    """The sum of ones, once that file is there."""
    print("ready", flush=True)
    until = time.monotonic() + 60
    while not Path(go).exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    x = torch.ones(1)
    dist.all_reduce(x)
    return float(x)
