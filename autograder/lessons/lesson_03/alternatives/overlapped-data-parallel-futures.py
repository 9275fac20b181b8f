"""Buckets that are objects, and futures in place of handles: what follows each hands out its gradients."""

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future


class Bucket:
    """Parameters that go together, and how many of them wait for their gradient in this backward."""

    def __init__(self, members: list[nn.Parameter]):
        self.members, self.missing = members, len(members)

    def average(self, group: dist.ProcessGroup) -> Future | None:
        """Begin, and fill the gradients in when it is there."""
        self.missing = len(self.members)
        for p in self.members:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        together = torch.cat([p.grad.reshape(-1) for p in self.members])
        together.div_(dist.get_world_size(group))
        if dist.get_world_size(group) == 1:
            self.hand_out(together)
            return None
        future = dist.all_reduce(together, group=group, async_op=True).get_future()
        return future.then(lambda _: self.hand_out(together))

    def hand_out(self, together: Tensor) -> None:
        """Gradients from their places in what came back."""
        begin = 0
        for p in self.members:
            p.grad.copy_(together[begin : begin + p.numel()].view_as(p))
            begin += p.numel()


class OverlappedDataParallel(nn.Module):
    """Replicas whose gradients are averaged during backward."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, bucket_bytes: int = 25 * 2**20):
        super().__init__()
        broadcast_module(module, group)
        self.module, self.group, self.silent, self.begun = module, group, 0, False
        parameters = [*module.parameters()]
        ids = assign_buckets(parameters, bucket_bytes)
        self.all_of_them = [Bucket([parameters[i] for i in own]) for own in ids]
        self.to_go: list[Bucket] = []
        self.under_way: list[Future] = []
        for bucket in self.all_of_them:
            for p in bucket.members:
                p.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self.has_one_more(bucket))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self):
        self.silent += 1
        try:
            yield
        finally:
            self.silent -= 1

    def has_one_more(self, bucket: Bucket) -> None:
        if self.silent:
            return
        if not self.begun:
            self.begun, self.to_go = True, self.all_of_them[:]
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        bucket.missing -= 1
        while self.to_go and not self.to_go[0].missing:
            self.send_next()

    def send_next(self) -> None:
        future = self.to_go.pop(0).average(self.group)
        if future is not None:
            self.under_way.append(future)

    def finish(self) -> None:
        while self.to_go:
            self.send_next()
        torch.futures.wait_all(self.under_way)
        self.begun, self.under_way = False, []
