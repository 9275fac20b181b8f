"""From a whole tensor to one rank's block of it, and back."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


def block_of(tensor: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's block of `tensor`, cut along `dim`, in its own memory. ValueError if it does not divide."""
    size = dist.get_world_size(group)
    if tensor.shape[dim] % size:
        raise ValueError(f"dim {dim} of {list(tensor.shape)} does not divide among {size} ranks")
    return tensor.detach().chunk(size, dim)[dist.get_rank(group)].clone(memory_format=torch.contiguous_format)


def joined(block: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """The blocks of all ranks, joined along `dim` in rank order. No gradient flows."""
    own = block.detach().contiguous()
    blocks = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(blocks, own, group=group)
    return torch.cat(blocks, dim)


def as_parameter(tensor: Tensor | None) -> nn.Parameter | None:
    """A copy of `tensor` as a parameter; None stays None."""
    return None if tensor is None else nn.Parameter(tensor.detach().clone())
