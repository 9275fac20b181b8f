"""Which collectives work, on which backend and device: each in a job of its own, its numbers compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

import labkit
from labkit.devices.watched import counted
from labkit.hosts import usable_here
from labkit.launch import LaunchError
from labkit.prove.result import Results

_TIMEOUT = 30.0
Tried = Callable[[Tensor, dist.ProcessGroup], tuple[Tensor, Tensor]]


def main(results: Results) -> None:
    """A row for each place, the operations that do not work named with their error."""
    for name, ranks, backend, device in _places():
        refused = [refusal for op in OPERATIONS if (refusal := _refusal(op, ranks, backend, device))]
        working = len(OPERATIONS) - len(refused)
        says = f"{working} of {len(OPERATIONS)} work" + "".join(f"; {text}" for text in refused)
        needed = backend == "nccl" or device == "cpu"  # gloo on GPUs has fewer, which lessons know
        results.add(name, "measured" if not needed else "failed" if refused else "passed", says)


def _places() -> Iterator[tuple[str, int, str, str]]:
    gpus = usable_here()
    yield "gloo, on the CPU", 2, "gloo", "cpu"
    if gpus:
        yield f"NCCL, {counted(gpus, 'GPU')}", gpus, "nccl", "cuda"
        yield "gloo, on GPUs", 2, "gloo", "cuda"


def _refusal(operation: str, ranks: int, backend: str, device: str) -> str:
    """Why an operation does not work, in one line; empty when it does."""
    try:
        job = labkit.launch(attempt, operation, device, ranks=ranks, backend=backend, timeout=_TIMEOUT)
    except LaunchError as error:
        return f"{operation}: {str(error).strip().splitlines()[0][:160]}"
    return "" if all(job.results) else f"{operation}: wrong numbers"


def attempt(operation: str, device: str, group: dist.ProcessGroup) -> bool:
    """On a rank: whether an operation gives the numbers it should."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = torch.arange(4.0 * size, device=device) + 100 * rank
    got, expected = OPERATIONS[operation](mine, group)
    return torch.equal(got.cpu(), expected.cpu())


def _of_all(mine: Tensor, size: int) -> Tensor:
    """What every rank holds, one row each."""
    start = torch.arange(mine.numel(), dtype=mine.dtype)
    return torch.stack([start + 100 * rank for rank in range(size)])


def _all_reduce(mine: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    dist.all_reduce(mine, group=group)
    return mine, _of_all(mine, dist.get_world_size(group)).sum(0)


def _broadcast(mine: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    dist.broadcast(mine, src=0, group=group)
    return mine, _of_all(mine, 1)[0]


def _all_gather(mine: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    size = dist.get_world_size(group)
    out = mine.new_empty(size * mine.numel())
    dist.all_gather_into_tensor(out, mine, group=group)
    return out, _of_all(mine, size).flatten()


def _reduce_scatter(mine: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    out = mine.new_empty(mine.numel() // size)
    dist.reduce_scatter_tensor(out, mine, group=group)
    return out, _of_all(mine, size).sum(0).chunk(size)[rank]


def _all_to_all(mine: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    out = torch.empty_like(mine)
    dist.all_to_all_single(out, mine, group=group)
    return out, torch.cat([row.chunk(size)[rank] for row in _of_all(mine, size)])


def _ring(mine: Tensor, group: dist.ProcessGroup, alone: bool) -> tuple[Tensor, Tensor]:
    """A message to the next rank and from the one before. alone: one call after the other, not batched.

    Over NCCL such calls wait for one another, so not every rank may begin with the same one.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    before, after = (rank - 1) % size, (rank + 1) % size
    if size == 1:
        return mine, mine
    got = torch.empty_like(mine)
    calls = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, got, before)]
    if alone:
        works = [call.op(call.tensor, call.peer) for call in (calls if rank % 2 else calls[::-1])]
    else:
        works = dist.batch_isend_irecv(calls)
    for work in filter(None, works):
        work.wait()
    return got, _of_all(mine, size)[before]


OPERATIONS: dict[str, Tried] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "isend, irecv": partial(_ring, alone=True),
    "batch_isend_irecv": partial(_ring, alone=False),
}
