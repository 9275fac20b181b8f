"""There, worked on, and back: pieces of ranks and experts as a table of tensors, gates by einsum."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Trip:
    """Where this call's rows went."""

    inverse: Tensor
    sent: list[int]
    received: list[int]
    table: list[list[int]]


def followed(rows: Tensor) -> Tensor:
    """The same rows, with a backward on every rank, whatever is differentiated there."""
    if torch.is_grad_enabled() and not rows.requires_grad:
        return rows.detach().requires_grad_()
    return rows


class ExpertParallel(nn.Module):
    def __init__(
        self, router: nn.Parameter, experts: Sequence[nn.Module], active: int, group: dist.ProcessGroup
    ):
        super().__init__()
        self.router = router
        self.experts = nn.ModuleList(experts)
        self.active, self.group = active, group

    def forward(self, tokens: Tensor) -> Tensor:
        gates, chosen, _ = route(tokens, self.router, self.active)
        arrived, trip = self._there(tokens, chosen)
        back = self._back(self._work(arrived, trip).to(tokens.dtype), trip)
        of_tokens = back[trip.inverse].unflatten(0, chosen.shape)
        wide = torch.promote_types(gates.dtype, tokens.dtype)
        return torch.einsum("nk,nkh->nh", gates.to(wide), of_tokens.to(wide)).to(tokens.dtype)

    def _there(self, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Trip]:
        ranks = self.group.size()
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=ranks * len(self.experts))
        table = exchange_counts(counts, self.group)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        sent, received = counts.unflatten(0, (ranks, -1)).sum(1).tolist(), table.sum(1).tolist()
        trip = Trip(inverse, sent, received, table.tolist())
        rows = tokens.repeat_interleave(self.active, dim=0)[order]
        return AllToAll.apply(followed(rows), sent, received, self.group), trip

    def _work(self, rows: Tensor, trip: Trip) -> Tensor:
        """Each expert once, on the rows of all ranks; the rows come back in the order in which they came."""
        pieces = rows.split([count for line in trip.table for count in line])
        own = len(self.experts)
        done = []
        for number, expert in enumerate(self.experts):
            out = expert(torch.cat(pieces[number::own]))
            done.append(out.split([line[number] for line in trip.table]))
        return torch.cat([of_rank for of_ranks in zip(*done, strict=True) for of_rank in of_ranks])

    def _back(self, rows: Tensor, trip: Trip) -> Tensor:
        return AllToAll.apply(followed(rows), trip.received, trip.sent, self.group)
