"""Backward builds the product once more and asks autograd; the bias has a function of its own."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


class _GatheredAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.group = group
        ctx.save_for_backward(x, weight, bias)
        return F.linear(joined(x, 1, group), weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, bias = ctx.saved_tensors
        tokens = joined(x, 1, ctx.group).requires_grad_()
        leaves = [t.detach().requires_grad_() for t in (weight, bias) if t is not None]
        with torch.enable_grad():
            out = F.linear(tokens, *leaves)
        of_tokens, of_weight, *of_bias = torch.autograd.grad(out, [tokens, *leaves], gradient)
        of_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        parts = torch.stack(of_tokens.chunk(ctx.group.size(), dim=1))
        reduce_scatter(of_x, parts, ctx.group)
        return of_x, of_weight, of_bias[0] if of_bias else None, None


class _SameForAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, bias, group):
        ctx.group = group
        return bias.clone()

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def sequence_column_parallel(x, weight, bias, group):
    return _GatheredAgain.apply(x, weight, bias, group)


def sequence_row_parallel(x, weight, bias, group):
    partial = torch.matmul(x, weight.mT)
    own = ReduceScatterSequence.apply(partial, group)
    return own if bias is None else own.add(_SameForAll.apply(bias, group))
