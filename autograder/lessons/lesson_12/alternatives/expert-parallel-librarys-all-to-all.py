"""By the all-to-all with a backward that torch ships, and lists of pieces."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_to_all_single


class ExpertParallel(nn.Module):
    def __init__(
        self, router: nn.Parameter, experts: Sequence[nn.Module], active: int, group: dist.ProcessGroup
    ):
        super().__init__()
        self.weight = router
        self.local, self.active, self.group = nn.ModuleList(experts), active, group

    def _travel(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        into = rows.new_empty(sum(received), rows.shape[1])
        return all_to_all_single(into, rows.contiguous(), received, sent, group=self.group)

    def forward(self, tokens: Tensor) -> Tensor:
        ranks, own = self.group.size(), len(self.local)
        gates, chosen, _ = route(tokens, self.weight, self.active)
        rows, places, counts = permute(tokens, chosen, ranks * own)
        if torch.is_grad_enabled() and not rows.requires_grad:
            rows.requires_grad_()
        table = torch.empty_like(counts)
        dist.all_to_all_single(table, counts, group=self.group)
        lengths = table.tolist()
        sent = counts.view(ranks, own).sum(1).tolist()
        received = table.view(ranks, own).sum(1).tolist()
        pieces = self._travel(rows, sent, received).split(lengths)
        outs: list[Tensor] = list(pieces)
        for number, expert in enumerate(self.local):
            of_it = range(number, len(pieces), own)
            done = expert(torch.cat([pieces[i] for i in of_it])).split([lengths[i] for i in of_it])
            for i, out in zip(of_it, done, strict=True):
                outs[i] = out
        back = self._travel(torch.cat(outs).to(tokens.dtype), received, sent)
        return unpermute(back, places, gates)
