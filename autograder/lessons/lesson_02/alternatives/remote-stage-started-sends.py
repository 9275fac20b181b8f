"""One function of autograd for each end; sends are started, and waited for in the same call."""

import torch
import torch.distributed as dist
from torch import nn


class SendActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, peer, group):
        ctx.to = peer, group
        send_tensor(x.detach(), peer, group)
        return torch.zeros(1, dtype=x.dtype, device=x.device).sum()

    @staticmethod
    def backward(ctx, unused):
        peer, group = ctx.to
        return receive_tensor(peer, group), None, None


class ReceiveActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, handle, peer, group):
        ctx.back_to = peer, group
        return receive_tensor(peer, group)

    @staticmethod
    def backward(ctx, grad):
        send_tensor(grad.contiguous(), *ctx.back_to)
        return torch.zeros(()), None, None


class RemoteStage(nn.Module):
    def __init__(self, module, group):
        super().__init__()
        self.module = module
        self.group = group

    def forward(self, x=None):
        rank, last = dist.get_rank(self.group), dist.get_world_size(self.group) - 1
        if rank != 0:
            start = torch.tensor(0.0, requires_grad=True)
            x = ReceiveActivation.apply(start, rank - 1, self.group)
        out = self.module(x)
        return out if rank == last else SendActivation.apply(out, rank + 1, self.group)
