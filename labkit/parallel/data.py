"""Gradients of replicas (lesson 03)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Replace the gradient of every trained parameter by its mean over `group`; a missing one is zeros."""
    size = dist.get_world_size(group)
    for parameter in module.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= size
