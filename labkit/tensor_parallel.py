"""What lesson 06 builds, in the form lesson 07 goes on with: two sums over ranks, and two products with them.

Where lesson 06 is graded, this file is taken away.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def copy_to_ranks(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """f: x as it is; in backward the sum of the ranks' gradients. Where something whole enters a region."""
    return _CopyToRanks.apply(x, group)


def sum_over_ranks(partial: Tensor, group: dist.ProcessGroup) -> Tensor:
    """g: the sum of the ranks' tensors; in backward the gradient as it is. Where partial sums leave one."""
    return _SumOverRanks.apply(partial, group)


def column_parallel(x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup) -> Tensor:
    """This rank's features of a product, [..., out / t].

    x: whole, [..., in]. weight, bias: this rank's rows, [out / t, in] and [out / t].
    """
    return F.linear(copy_to_ranks(x, group), weight, bias)


def row_parallel(x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup) -> Tensor:
    """The whole product, [..., out], on every rank.

    x: this rank's features, [..., in / t]. weight: this rank's columns, [out, in / t].
    bias: whole, [out]; added once, behind the sum.
    """
    total = sum_over_ranks(F.linear(x, weight), group)
    return total if bias is None else total + bias


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.group), None


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(partial, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _summed(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """In memory of its own: all_reduce works in place, and what autograd hands out belongs to others."""
    result = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group)
    return result
