"""All gradients in one vector, of which each rank sums its share and hands it to the others."""

import copy
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn


def around(group: dist.ProcessGroup, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    assert dropout == 0
    return RingAttention.apply(q, k, v, group)


class ContextParallelGPT(nn.Module):
    def __init__(
        self,
        full: Transformer,
        context: dist.ProcessGroup,
        tensor: dist.ProcessGroup,
        batch: dist.ProcessGroup,
    ):
        super().__init__()
        self.context, self.batch = context, batch
        memo: dict[int, object] = {}  # of what was copied already: the table, where the head is tied to it
        self.tokens, self.positions, self.norm, self.head = (
            copy.deepcopy(part, memo) for part in (full.tokens, full.positions, full.norm, full.head)
        )
        streams = RandomStreams(0, tensor)
        self.blocks = nn.Sequential(*(TensorParallelBlock(block, tensor, streams) for block in full.blocks))
        for block in self.blocks:
            block.attention.attend = partial(around, context)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        rank, ranks = dist.get_rank(self.context), dist.get_world_size(self.context)
        places = torch.as_tensor(own_tokens(ids.size(-1) * ranks, rank, ranks), device=ids.device)
        hidden = self.blocks(self.tokens(ids) + self.positions(places))
        logits = self.head(self.norm(hidden))
        return sharded_loss(logits.flatten(0, 1).unsqueeze(0), targets.reshape(1, -1), self.batch)

    @torch.no_grad()
    def sum_gradients(self) -> None:
        n, parameters = dist.get_world_size(self.batch), list(self.parameters())
        flat = torch.cat([p.grad.flatten() for p in parameters])
        flat = torch.cat([flat, flat.new_zeros(-len(flat) % n)])
        mine = flat.new_empty(len(flat) // n)
        dist.reduce_scatter_tensor(mine, flat, group=self.batch)
        dist.all_gather_into_tensor(flat, mine, group=self.batch)
        at = 0
        for p in parameters:
            p.grad = flat[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
