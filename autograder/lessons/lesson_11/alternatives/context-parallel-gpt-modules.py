"""Parts are copied one by one and tied again; attention and gradients in small methods."""

import copy

import torch.distributed as dist
from torch import Tensor, nn


class RingModule(nn.Module):
    """Attention for a block."""

    def __init__(self, group):
        super().__init__()
        self.group = group

    def forward(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return RingAttention.apply(q, k, v, self.group)


class ContextParallelGPT(nn.Module):
    def __init__(self, full, context, tensor, batch):
        super().__init__()
        self.context, self.batch = context, batch
        self.tokens = copy.deepcopy(full.tokens)
        self.positions = copy.deepcopy(full.positions)
        self.norm = copy.deepcopy(full.norm)
        self.head = copy.deepcopy(full.head)
        if full.head.weight is full.tokens.weight:
            self.head.weight = self.tokens.weight
        self.blocks = nn.ModuleList()
        for block in full.blocks:
            part = TensorParallelBlock(block, tensor, RandomStreams(0, tensor))
            part.attention.attend = RingModule(context)
            self.blocks.append(part)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        rank, ranks = dist.get_rank(self.context), dist.get_world_size(self.context)
        own = own_tokens(ids.shape[1] * ranks, rank, ranks)
        x = self.tokens(ids) + self.positions.weight[own]
        for block in self.blocks:
            x = block(x)
        return sharded_loss(self.head(self.norm(x)), targets, self.batch)

    def sum_gradients(self) -> None:
        works = [
            dist.all_reduce(parameter.grad, group=self.batch, async_op=True)
            for parameter in self.parameters()
            if parameter.grad is not None
        ]
        for work in works:
            work.wait()
