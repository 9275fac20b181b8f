"""Finds out what the messages of an all-reduce carry: a run on a tensor whose sums tell what was added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

MOST_RANKS = 7  # n parts times n ranks are as many bits, and an int64 has 63


@dataclass(frozen=True)
class Carried:
    """What one message held: the number of its part, and the ranks whose numbers had been added up in it."""

    part: int
    ranks: tuple[int, ...]


def carried_messages(
    all_reduce: Callable[[torch.Tensor, dist.ProcessGroup], object],
    group: dist.ProcessGroup,
    numel: int = 1024,
) -> list[Carried | None]:
    """Run `all_reduce` on about `numel` int64 numbers; what each message that this rank sent began with.

    Rank r's number in part p has one bit, p n + r, so that any sum within a part shows who is in it.
    ValueError beyond 7 ranks, where the bits of an int64 are used up.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if world_size > MOST_RANKS:
        raise ValueError(f"expected at most {MOST_RANKS} ranks, found {world_size}")
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    marks = torch.tensor([1 << (part * world_size + rank) for part in range(world_size)], device=device)
    x = marks.repeat_interleave(max(1, numel // world_size))
    with _first_elements_sent() as values:
        all_reduce(x, group)
    return [carried(value, world_size) for value in values]


def carried(value: int, world_size: int) -> Carried | None:
    """Read a sum of marks; None when it is not one within one part."""
    bits = [bit for bit in range(world_size * world_size) if value >> bit & 1]
    parts = {bit // world_size for bit in bits}
    if len(parts) != 1:
        return None
    return Carried(parts.pop(), tuple(bit % world_size for bit in bits))


@contextmanager
def _first_elements_sent() -> Iterator[list[int]]:
    """A list that fills with the first element of every tensor sent inside the block, before it leaves."""
    values: list[int] = []
    original = dist.ProcessGroup.send

    def send(group: Any, tensors: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        values.extend(int(tensor.flatten()[0]) for tensor in tensors if tensor.numel())
        return original(group, tensors, *args, **kwargs)

    dist.ProcessGroup.send = send  # type: ignore[method-assign,assignment]
    try:
        yield values
    finally:
        dist.ProcessGroup.send = original  # type: ignore[method-assign]
