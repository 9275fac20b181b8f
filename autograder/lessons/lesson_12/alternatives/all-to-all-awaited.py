"""The call is started, and waited for later."""

import torch
import torch.distributed as dist
from torch import Tensor


def exchange_counts(counts: Tensor, group) -> Tensor:
    table = counts.new_zeros(counts.shape)
    dist.all_to_all_single(table, counts.contiguous(), group=group, async_op=True).wait()
    return table.reshape(dist.get_world_size(group), len(counts) // dist.get_world_size(group))


class AllToAll(torch.autograd.Function):
    """Rows to the ranks they are for."""

    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.sent, ctx.received, ctx.group = list(sent), list(received), group
        return AllToAll.move(rows, ctx.sent, ctx.received, group)

    @staticmethod
    def backward(ctx, grad):
        return AllToAll.move(grad, ctx.received, ctx.sent, ctx.group), None, None, None

    @staticmethod
    def move(rows: Tensor, leaving: list[int], coming: list[int], group) -> Tensor:
        into = torch.empty((sum(coming), *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
        work = dist.all_to_all_single(
            into, rows.clone(memory_format=torch.contiguous_format), coming, leaving, group, async_op=True
        )
        work.wait()
        return into
