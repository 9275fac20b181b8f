"""Without permute and unpermute: a sort of its own, places by running sums, index_add_ at the end."""


class ExpertParallel(nn.Module):
    def __init__(
        self, router: nn.Parameter, experts: Sequence[nn.Module], active: int, group: dist.ProcessGroup
    ):
        super().__init__()
        self.register_parameter("gate", router)
        self.own = nn.ModuleDict({f"expert {i}": expert for i, expert in enumerate(experts)})
        self.active, self.group = active, group

    def forward(self, tokens: Tensor) -> Tensor:
        ranks, owned = dist.get_world_size(self.group), len(self.own)
        gates, experts, _ = route(tokens, self.gate, self.active)
        visits, order = experts.flatten().sort(stable=True)
        source = order // self.active
        counts = torch.bincount(visits, minlength=ranks * owned)
        table = exchange_counts(counts, self.group)
        there, here = (t.reshape(ranks, owned).sum(1).tolist() for t in (counts, table))
        if torch.is_grad_enabled() and not tokens.requires_grad:
            tokens = tokens.detach().requires_grad_()
        arrived = AllToAll.apply(tokens.index_select(0, source), there, here, self.group)
        place = self._places(table)
        by_expert = torch.zeros_like(arrived).index_copy(0, place, arrived)
        pieces = by_expert.split(table.sum(0).tolist())
        done = [expert(piece) for expert, piece in zip(self.own.values(), pieces, strict=True)]
        back = AllToAll.apply(torch.cat(done)[place], here, there, self.group)
        wide = torch.promote_types(gates.dtype, back.dtype)
        weighted = back.to(wide) * gates.flatten()[order].unsqueeze(1).to(wide)
        out = torch.zeros(tokens.shape, dtype=wide, device=tokens.device)
        return out.index_add(0, source, weighted).to(tokens.dtype)

    @staticmethod
    def _places(table: Tensor) -> Tensor:
        """Where each arrived row stands once those of an expert are together. table: [ranks, own experts]."""
        lengths = table.flatten()
        before = lengths.cumsum(0) - lengths
        after = table.T.flatten().cumsum(0).reshape(table.T.shape).T.flatten() - lengths
        moved = (after - before).repeat_interleave(lengths)
        return torch.arange(len(moved), device=table.device) + moved
