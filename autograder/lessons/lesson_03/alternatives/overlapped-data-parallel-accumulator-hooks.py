"""Hooks on autograd's accumulating nodes; one flat tensor a bucket that lives as long as the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass
class Bucket:
    """Some parameters, and the memory in which their gradients travel."""

    parameters: list[nn.Parameter]
    flat: Tensor = field(init=False)
    views: list[Tensor] = field(init=False)
    waiting_for: set[int] = field(init=False)

    def __post_init__(self) -> None:
        sizes = [p.numel() for p in self.parameters]
        first = self.parameters[0]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        pieces = self.flat.split(sizes)
        self.views = [piece.view(p.shape) for piece, p in zip(pieces, self.parameters, strict=True)]
        self.forget()

    def forget(self) -> None:
        self.waiting_for = set(range(len(self.parameters)))

    def fill(self) -> None:
        """Bring in gradients that are not there yet."""
        for p, view in zip(self.parameters, self.views, strict=True):
            if p.grad is None:
                view.zero_()
            elif p.grad.data_ptr() != view.data_ptr():
                view.copy_(p.grad.detach())
            p.grad = view


class OverlappedDataParallel(nn.Module):
    def __init__(self, module: nn.Module, group: dist.ProcessGroup, bucket_bytes: int = 25 * 2**20):
        super().__init__()
        self.module, self.group, self.sends = module, group, True
        broadcast_module(module, group)
        all_of_them = list(module.parameters())
        self.buckets = [
            Bucket([all_of_them[i] for i in places]) for places in assign_buckets(all_of_them, bucket_bytes)
        ]
        self.under_way: list[dist.Work] = []
        self.asked_for_the_end = False
        self.nodes = []  # a node that nobody holds is made anew, without hooks
        for number, bucket in enumerate(self.buckets):
            for place, parameter in enumerate(bucket.parameters):
                with torch.enable_grad():
                    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
                node.register_hook(self._hook(number, place))
                self.nodes.append(node)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.sends, before = False, self.sends
        try:
            yield
        finally:
            self.sends = before

    def _hook(self, number: int, place: int):
        def accumulated(*_: object) -> None:
            if not self.sends:
                return
            if not self.asked_for_the_end:
                self.asked_for_the_end = True
                torch.autograd.Variable._execution_engine.queue_callback(self._end)
            self.buckets[number].waiting_for.discard(place)
            while len(self.under_way) < len(self.buckets):
                if self.buckets[len(self.under_way)].waiting_for:
                    break
                self._start_next()

        return accumulated

    @torch.no_grad()
    def _start_next(self) -> None:
        bucket = self.buckets[len(self.under_way)]
        bucket.fill()
        self.under_way.append(dist.all_reduce(bucket.flat, group=self.group, async_op=True))

    @torch.no_grad()
    def _end(self) -> None:
        while len(self.under_way) < len(self.buckets):
            self._start_next()
        for bucket, work in zip(self.buckets, self.under_way, strict=True):
            work.wait()
            bucket.flat.div_(self.group.size())
            bucket.forget()
        self.under_way, self.asked_for_the_end = [], False
