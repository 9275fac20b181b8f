"""What arrives is permuted as what leaves was, each row having one expert and the gate 1."""

import torch
from torch import Tensor, nn


class ExpertParallel(nn.Module):
    """Experts over ranks."""

    def __init__(self, router: nn.Parameter, experts, active: int, group):
        super().__init__()
        self.router, self.active, self.group = router, active, group
        self.local = nn.ModuleList(experts)

    def forward(self, tokens: Tensor) -> Tensor:
        gates, chosen, _ = route(tokens, self.router, self.active)
        rows, places, counts = permute(tokens, chosen, len(self.router))
        table = exchange_counts(counts, self.group)
        sent, received = counts.unflatten(0, table.shape).sum(1).tolist(), table.sum(1).tolist()
        rows = rows + rows.new_zeros((), requires_grad=True)  # in backward every rank takes part
        rows = AllToAll.apply(rows, sent, received, self.group)
        labels = torch.cat([torch.arange(len(self.local)).repeat_interleave(each.cpu()) for each in table])
        labels = labels.to(rows.device).unsqueeze(1)
        rows, order, sizes = permute(rows, labels, len(self.local))
        rows = torch.cat([e(part) for e, part in zip(self.local, rows.split(sizes.tolist()), strict=True)])
        rows = unpermute(rows, order, torch.ones_like(labels, dtype=rows.dtype))
        return unpermute(AllToAll.apply(rows, received, sent, self.group), places, gates)
