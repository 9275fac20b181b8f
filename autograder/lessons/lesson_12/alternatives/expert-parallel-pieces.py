"""Pieces of each rank, joined for each expert by strides."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ExpertParallel(nn.Module):
    def __init__(
        self, router: nn.Parameter, experts: Sequence[nn.Module], active: int, group: dist.ProcessGroup
    ):
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)
        self.active, self.group = active, group

    def forward(self, tokens: Tensor) -> Tensor:
        local = len(self.experts)
        gates, chosen, _ = route(tokens, self.router, self.active)
        rows, places, counts = permute(tokens, chosen, len(self.router))
        rows.requires_grad_(rows.requires_grad or torch.is_grad_enabled())
        table = exchange_counts(counts, self.group)
        sent = [int(part.sum()) for part in counts.split(local)]
        received = [int(line.sum()) for line in table]
        arrived = AllToAll.apply(rows, sent, received, self.group)
        pieces = arrived.split(table.flatten().tolist())
        done = []
        for i, expert in enumerate(self.experts):
            mine = torch.cat(pieces[i::local])
            done.append(expert(mine).split(table[:, i].tolist()))
        by_rank = torch.cat([done[i][r] for r in range(len(received)) for i in range(local)])
        home = AllToAll.apply(by_rank, received, sent, self.group)
        return unpermute(home, places, gates)
