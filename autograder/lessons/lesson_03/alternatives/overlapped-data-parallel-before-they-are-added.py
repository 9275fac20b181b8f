"""Hooks of the parameters, which see a gradient before it is added to `.grad`; buckets with memory of their
own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass
class Bucket:
    members: list[nn.Parameter]
    came: set[int] = field(default_factory=set)
    work: dist.Work | None = None

    def __post_init__(self):
        first = self.members[0]
        self.flat = torch.zeros(sum(p.numel() for p in self.members), dtype=first.dtype, device=first.device)
        parts = self.flat.split([p.numel() for p in self.members])
        self.views = [part.view(p.shape) for p, part in zip(self.members, parts, strict=True)]

    @property
    def full(self) -> bool:
        return len(self.came) == len(self.members)

    def take(self, position: int, grad: Tensor | None) -> None:
        self.came.add(position)
        view, there = self.views[position], self.members[position].grad
        view.zero_()
        for part in (grad, there):
            if part is not None:
                view.add_(part)

    def start(self, group) -> None:
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def finish(self, d: int) -> None:
        self.work.wait()
        self.flat.div_(d)
        for p, view in zip(self.members, self.views, strict=True):
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(view)
        self.came.clear()
        self.work = None


class OverlappedDataParallel(nn.Module):
    def __init__(self, module: nn.Module, group: dist.ProcessGroup, bucket_bytes: int = 25 * 2**20):
        super().__init__()
        self.module = module
        self.group = group
        broadcast_module(module, group)
        parameters = [*module.parameters()]
        self._buckets = [
            Bucket([parameters[i] for i in places]) for places in assign_buckets(parameters, bucket_bytes)
        ]
        self._quiet = 0
        self._running = False
        for number, bucket in enumerate(self._buckets):
            for position, p in enumerate(bucket.members):
                p.register_hook(
                    lambda grad, number=number, position=position: self._came(number, position, grad)
                )

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _came(self, number: int, position: int, grad: Tensor) -> None:
        if self._quiet:
            return
        if not self._running:
            self._running = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        with torch.no_grad():
            self._buckets[number].take(position, grad)
        for bucket in self._buckets:
            if not bucket.full:
                break
            if bucket.work is None:
                bucket.start(self.group)

    @torch.no_grad()
    def _end(self) -> None:
        for bucket in self._buckets:
            for position in range(len(bucket.members)):
                if position not in bucket.came:
                    bucket.take(position, None)
            if bucket.work is None:
                bucket.start(self.group)
        for bucket in self._buckets:
            bucket.finish(dist.get_world_size(self.group))
        self._running = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1
