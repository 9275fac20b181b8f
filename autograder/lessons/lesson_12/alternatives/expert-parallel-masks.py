"""Rows of each expert are looked up, and outputs written back to where they came from."""

import torch
from torch import Tensor, nn


def _owners(table: Tensor) -> Tensor:
    """Of each row that arrived which of this rank's experts it is for."""
    own = torch.arange(table.shape[1], device=table.device)
    return torch.cat([torch.repeat_interleave(own, line) for line in table])


class ExpertParallel(nn.Module):
    def __init__(self, router, experts, active, group):
        super().__init__()
        self.register_parameter("gate", router)
        for i, expert in enumerate(experts):
            self.add_module(f"expert{i}", expert)
        self.count, self.active, self.group = len(experts), active, group

    def forward(self, tokens):
        gates, chosen, _ = route(tokens, self.gate, self.active)
        rows, places, counts = permute(tokens, chosen, self.gate.shape[0])
        table = exchange_counts(counts, self.group)
        if torch.is_grad_enabled():
            rows = rows if rows.requires_grad else rows.clone().requires_grad_()
        going = counts.reshape(-1, self.count).sum(dim=1).tolist()
        coming = table.sum(dim=1).tolist()
        arrived = AllToAll.apply(rows, going, coming, self.group)
        owners = _owners(table)
        done = torch.zeros_like(arrived)
        for i in range(self.count):
            where = (owners == i).nonzero().squeeze(1)
            done = done.index_copy(0, where, getattr(self, f"expert{i}")(arrived[where]))
        home = AllToAll.apply(done, coming, going, self.group)
        return unpermute(home, places, gates)
