"""Gradients live in their bucket all the time: views put there before backward; unused ones are zeros."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class _Bucket:
    """Parameters whose gradients travel together."""

    def __init__(self, parameters: list[nn.Parameter], group: dist.ProcessGroup):
        self.parameters, self.group = parameters, group
        self.work: dist.Work | None = None
        self.flat = torch.zeros(0)
        self.left = set(parameters)

    def ready(self) -> bool:
        return not self.left and self.work is None

    def start(self) -> None:
        pieces = [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in self.parameters]
        self.flat = torch.cat(pieces)
        self.flat /= dist.get_world_size(self.group)
        self.work = dist.all_reduce(self.flat, group=self.group, async_op=True)

    def finish(self) -> None:
        assert self.work is not None
        self.work.wait()
        self.work, self.left, offset = None, set(self.parameters), 0
        for p in self.parameters:
            p.grad = self.flat[offset : offset + p.numel()].view(p.shape)
            offset += p.numel()


class OverlappedDataParallel(nn.Module):
    """Replicas whose gradients are averaged during backward."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, bucket_bytes: int = 25 * 2**20):
        super().__init__()
        self.module, self.group = module, group
        broadcast_module(module, group)
        order = list(module.parameters())
        chosen = assign_buckets(order, bucket_bytes)
        self.buckets = [_Bucket([order[i] for i in positions], group) for positions in chosen]
        self.synchronised, self.at_the_end = True, False
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(lambda p, b=bucket: self._came(p, b))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        outside, self.synchronised = self.synchronised, False
        try:
            yield
        finally:
            self.synchronised = outside

    def _came(self, parameter: torch.Tensor, bucket: _Bucket) -> None:
        if self.synchronised:
            if not self.at_the_end:
                self.at_the_end = True
                torch.autograd.Variable._execution_engine.queue_callback(self._last)
            bucket.left.discard(parameter)
            for each in self.buckets:  # in the same order on every rank
                if each.work is None and not each.ready():
                    break
                if each.ready():
                    each.start()

    def _last(self) -> None:
        for bucket in self.buckets:
            if bucket.work is None:
                bucket.start()
        for bucket in self.buckets:
            bucket.finish()
        self.at_the_end = False
