"""What labkit takes from inside torch for ranks with GPUs. Nothing that takes points rests on it, which
`labkit.torch_private` could not say of itself: grades are given on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def watch_batches(begins: Callable[[], None], ends: Callable[[dist.Work | None], None]) -> None:
    """Have `begins()` called before calls that NCCL starts together, and `ends(work)` after them, with what
    can be waited for: of the calls themselves none has anything.
    """
    start, end = dist.ProcessGroup._start_coalescing, dist.ProcessGroup._end_coalescing

    def started(group: dist.ProcessGroup, *args: Any) -> None:
        begins()
        start(group, *args)

    def ended(group: dist.ProcessGroup, *args: Any) -> dist.Work | None:
        work = end(group, *args)
        ends(work)
        return work

    dist.ProcessGroup._start_coalescing = started  # type: ignore[method-assign, assignment]
    dist.ProcessGroup._end_coalescing = ended  # type: ignore[method-assign, assignment]


def when_cuda_begins(do: Callable[[], None]) -> None:
    """Have this done as soon as CUDA is used in this process, before anything else is done there."""
    torch.cuda._lazy_call(do)
