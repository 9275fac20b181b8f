"""What a rank did, as plain data: communication calls, named stretches of time, memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """One communication call of one rank.

    num_bytes: bytes of this rank's input tensors (all_gather: the local shard; recv: the received tensor).
    shape, dtype: of the first input tensor; `()` and `""` for a barrier.
    group: global ranks taking part. peer: global rank at the other end of a send or recv.
    order: 0, 1, 2, ... over this rank's calls, in start order.
    start, end: seconds since the first rank entered the job's function. `end` is when the rank had finished
        waiting for the call, and None when nobody waited for it in Python.
    source: "python" when the call came through torch.distributed's Python interface, "native" when C++ made
        it (DistributedDataParallel's reducer, functional collectives, DTensor).
    line: the caller's own line, as "file:number".
    tag: of a send or recv; messages of one tag arrive in order.
    sent, received: of an all_to_all from Python: bytes for and from each rank of `group`, in its order, what
        the rank keeps for itself among them. () for every other call.
    """

    rank: int
    op: str
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    group: tuple[int, ...]
    peer: int | None
    order: int
    start: float
    end: float | None
    source: str
    line: str
    tag: int = 0
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()


@dataclass(frozen=True)
class Span:
    """A named stretch of time on one rank; start and end in seconds since the job's start."""

    rank: int
    name: str
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class MemoryAt:
    """What one rank held at a moment, in bytes: torch's tensors on a GPU, elsewhere the process's resident
    set. start: seconds since the job's start.
    """

    rank: int
    start: float
    num_bytes: int


@dataclass(frozen=True)
class MemoryUse:
    """The most memory one rank held at once, in bytes; `device_bytes` is None where there is no GPU.

    host_bytes is the process's resident set, which includes the Python interpreter and torch itself.
    """

    rank: int
    host_bytes: int
    device_bytes: int | None
