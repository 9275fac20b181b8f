"""Slices of what arrived are put together for each expert, and the outputs cut up again. Counts travel in 32
bits.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ExpertParallel(nn.Module):
    """Experts over ranks."""

    def __init__(self, router: nn.Parameter, experts, active: int, group):
        super().__init__()
        self.router = router
        self.own = nn.ModuleList(experts)
        self.k = active
        self.ranks = group

    def forward(self, tokens: Tensor) -> Tensor:
        gates, chosen, _ = route(tokens, self.router, self.k)
        tokens = tokens if tokens.requires_grad else tokens.detach().requires_grad_()
        rows, places, counts = permute(tokens, chosen, self.router.shape[0])
        coming = exchange_counts(counts.int(), self.ranks)
        n = dist.get_world_size(self.ranks)
        leaving = counts.reshape(n, -1).sum(-1).tolist()
        arriving = coming.sum(-1).tolist()
        pieces = list(AllToAll.apply(rows, leaving, arriving, self.ranks).split(coming.flatten().tolist()))
        for e, expert in enumerate(self.own):
            mine = pieces[e :: len(self.own)]
            done = expert(torch.cat(mine)).split([len(piece) for piece in mine])
            pieces[e :: len(self.own)] = done
        back = AllToAll.apply(torch.cat(pieces), arriving, leaving, self.ranks)
        return unpermute(back, places, gates)
