"""One helper for counts, rows and gradients; splits saved as tensors."""

import torch
import torch.distributed as dist
from torch import Tensor


def _swap(rows, sent, received, group):
    out = torch.empty((sum(received), *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    dist.all_to_all_single(
        out, rows.contiguous(), output_split_sizes=received, input_split_sizes=sent, group=group
    )
    return out


def exchange_counts(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    n = group.size()
    table = counts.reshape(n, -1)
    return _swap(table, [1] * n, [1] * n, group)


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.save_for_backward(torch.tensor(sent), torch.tensor(received))
        ctx.group = group
        return _swap(rows, list(sent), list(received), group)

    @staticmethod
    def backward(ctx, grad):
        sent, received = (splits.tolist() for splits in ctx.saved_tensors)
        return _swap(grad, received, sent, ctx.group), None, None, None
