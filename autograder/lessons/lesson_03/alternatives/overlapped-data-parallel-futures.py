"""Futures in place of handles: what follows each of them cuts its bucket into gradients."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class OverlappedDataParallel(nn.Module):
    """Replicas whose gradients are averaged during backward."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, bucket_bytes: int = 25 * 2**20):
        super().__init__()
        self.module = module
        self.group = group
        broadcast_module(module, group)
        everything = list(module.parameters())
        self.buckets = [[everything[i] for i in ids] for ids in assign_buckets(everything, bucket_bytes)]
        self.bucket_of = {p: n for n, bucket in enumerate(self.buckets) for p in bucket}
        self.enabled = True
        self._start_over()
        for parameter in self.bucket_of:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        was_enabled = self.enabled
        self.enabled = False
        try:
            yield
        finally:
            self.enabled = was_enabled

    def _start_over(self) -> None:
        self.waiting = [len(bucket) for bucket in self.buckets]
        self.sent: list[torch.futures.Future] = []
        self.queued = False

    def _arrived(self, parameter: torch.Tensor) -> None:
        if not self.enabled:
            return
        if not self.queued:
            self.queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        self.waiting[self.bucket_of[parameter]] -= 1
        while len(self.sent) < len(self.buckets) and self.waiting[len(self.sent)] == 0:
            self._send(self.buckets[len(self.sent)])

    def _send(self, bucket: list[nn.Parameter]) -> None:
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.flatten() for part in parts]) / self.group.size()
        handle = dist.all_reduce(flat, group=self.group, async_op=True)
        self.sent.append(handle.get_future().then(lambda _: flat.split([p.numel() for p in bucket])))

    def _end_of_backward(self) -> None:
        for bucket in self.buckets[len(self.sent) :]:
            self._send(bucket)
        for bucket, means in zip(self.buckets, torch.futures.wait_all(self.sent), strict=True):
            for parameter, mean in zip(bucket, means, strict=True):
                parameter.grad = mean.view_as(parameter)
        self._start_over()
