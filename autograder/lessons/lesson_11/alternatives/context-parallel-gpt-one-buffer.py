"""A copy of the whole model whose blocks are replaced; gradients are summed in one flat buffer."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector


class ContextParallelGPT(nn.Module):
    def __init__(self, full, context, tensor, batch):
        super().__init__()
        self.context, self.batch = context, batch
        whole = copy.deepcopy(full)
        self.tokens, self.positions, self.norm, self.head = (
            whole.tokens,
            whole.positions,
            whole.norm,
            whole.head,
        )
        streams = RandomStreams(17, tensor)
        self.blocks = nn.Sequential(*(TensorParallelBlock(block, tensor, streams) for block in full.blocks))
        for block in self.blocks:
            block.attention.attend = lambda q, k, v, _: RingAttention.apply(q, k, v, context)

    def loss(self, ids, targets):
        n, rank = dist.get_world_size(self.context), dist.get_rank(self.context)
        front, back = (torch.arange(ids.shape[1] // 2, device=ids.device) for _ in range(2))
        half = len(front)
        positions = torch.cat((front + rank * half, back + (2 * n - 1 - rank) * half))
        hidden = self.blocks(F.embedding(ids, self.tokens.weight) + self.positions(positions))
        return sharded_loss(self.head(self.norm(hidden)), targets, self.batch)

    def sum_gradients(self):
        parameters = [p for p in self.parameters() if p.grad is not None]
        flat = parameters_to_vector([p.grad for p in parameters])
        dist.all_reduce(flat, group=self.batch)
        for parameter, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad.copy_(grad.view_as(parameter))
