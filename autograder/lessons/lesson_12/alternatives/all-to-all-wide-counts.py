"""Counts travel as int64, whatever they came as; where there is no other rank nothing is sent."""

import torch
import torch.distributed as dist
from torch import Tensor


def exchange_counts(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    n = dist.get_world_size(group)
    if n == 1:
        return counts.clone().unsqueeze(0)
    given = counts.to(torch.int64, copy=True)
    into = torch.zeros_like(given)
    dist.all_to_all_single(into, given, group=group)
    return into.unflatten(0, (n, -1)).to(counts.dtype)


def move(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    if dist.get_world_size(group) == 1:
        return rows.clone()
    into = rows.new_zeros((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(into, rows.contiguous(), list(received), list(sent), group=group)
    return into


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sent, received, group):
        if len(rows) != sum(sent):
            raise ValueError(f"{len(rows)} rows, {sum(sent)} to send")
        ctx.backwards = lambda grad: move(grad, received, sent, group)
        return move(rows, sent, received, group)

    @staticmethod
    def backward(ctx, grad):
        return ctx.backwards(grad), None, None, None
