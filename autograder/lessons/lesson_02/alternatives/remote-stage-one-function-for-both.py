"""One autograd function for either half of a boundary: told what to do now and what in backward."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn


class _Doing(torch.autograd.Function):
    @staticmethod
    def forward(now, later, tensor):
        return now(tensor)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.later = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return None, None, ctx.later(grad)


def _send(peer, group, tensor):
    send_tensor(tensor, peer, group)
    return torch.zeros((), dtype=tensor.dtype, device=tensor.device)


def _fetch(peer, group, _):
    return receive_tensor(peer, group)


def _give_back(peer, group, grad):
    send_tensor(grad, peer, group)


class RemoteStage(nn.Module):
    def __init__(self, module, group):
        super().__init__()
        self.module = module
        place, size = dist.get_rank(group), dist.get_world_size(group)
        self.before = None if place == 0 else (place - 1, group)
        self.behind = None if place == size - 1 else (place + 1, group)

    def forward(self, x=None):
        if self.before is not None:
            asking = torch.zeros((), requires_grad=torch.is_grad_enabled())
            x = _Doing.apply(partial(_fetch, *self.before), partial(_give_back, *self.before), asking)
        out = self.module(x)
        if self.behind is None:
            return out
        return _Doing.apply(partial(_send, *self.behind), partial(_fetch, *self.behind), out)
