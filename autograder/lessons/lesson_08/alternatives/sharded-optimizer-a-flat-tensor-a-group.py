class ShardedOptimizer:
    """A torch optimizer of which each rank of `group` holds and steps its share (ZeRO, stage 1)."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict],
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup,
        **options: object,
    ):
        """parameters: as torch optimizers take them, parameters or dicts {"params": [...], option: value}."""
        self.group, self.ranks = group, dist.get_world_size(group)
        given = list(parameters)
        if not isinstance(given[0], dict):
            given = [{"params": given}]
        self.members: list[list[nn.Parameter]] = []
        self.flats: list[Tensor] = []
        self.masters: list[nn.Parameter] = []
        inner = []
        for one in given:
            members = [p for p in one["params"] if p.requires_grad]
            self.members.append(members)
            self.flats.append(flatten(members, self.ranks) if members else torch.zeros(0))
            own = self._own(self.flats[-1]).clone()
            precise = own.float() if own.dtype in (torch.bfloat16, torch.float16) else own
            self.masters.append(nn.Parameter(precise))
            inner.append({**one, "params": [self.masters[-1]]})
        self.optimizer = optimizer_class(inner, **options)

    def _own(self, flat: Tensor) -> Tensor:
        size = flat.numel() // self.ranks
        return flat.narrow(0, dist.get_rank(self.group) * size, size)

    @torch.no_grad()
    def step(self) -> None:
        """Average the ranks' gradients, step, and leave the same new weights on every rank."""
        for members, flat, master in zip(self.members, self.flats, self.masters, strict=True):
            if members:
                gradient = torch.zeros(flat.numel(), dtype=master.dtype)
                for p, place in zip(members, views(gradient, members), strict=True):
                    if p.grad is not None:
                        place += p.grad.to(master.dtype) / self.ranks
                master.grad = torch.empty_like(master)
                reduce_scatter(master.grad, gradient, self.group)
        self.optimizer.step()
        for members, flat, master in zip(self.members, self.flats, self.masters, strict=True):
            master.grad = None
            if members:
                self._own(flat).copy_(master)
                all_gather(flat, self._own(flat), self.group)

    def zero_grad(self) -> None:
        """Forget the gradients of the model's parameters."""
        for members in self.members:
            for p in members:
                p.grad = None
