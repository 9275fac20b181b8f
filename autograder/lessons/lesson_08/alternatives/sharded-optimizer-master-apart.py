class ShardedOptimizer:
    """A torch optimizer of which each rank of `group` holds and steps its share (ZeRO, stage 1)."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict],
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup,
        **options: object,
    ):
        """parameters: as torch optimizers take them, parameters or dicts {"params": [...], option: value}.

        options: defaults for all groups, handed on to `optimizer_class`.
        """
        given = list(parameters)
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        trained = [[p for p in g["params"] if p.requires_grad] for g in groups]
        self.group, self.world_size = group, dist.get_world_size(group)
        self.parameters = [p for members in trained for p in members]
        self.weights = flatten(self.parameters, self.world_size)
        self.shard = self.weights.chunk(self.world_size)[dist.get_rank(group)]
        self.master = self.shard.to(torch.promote_types(self.shard.dtype, torch.float32), copy=True)
        self.sizes = self._elements_of_groups(
            [n for n, members in enumerate(trained) for _ in members], groups
        )
        self.parts = [nn.Parameter(part) for part in self.master.split(self.sizes)]
        inner = [
            {**g, "params": [part] if part.numel() else []}
            for g, part in zip(groups, self.parts, strict=True)
        ]
        self.optimizer = optimizer_class(inner, **options)

    def _elements_of_groups(self, group_of: Sequence[int], groups: Sequence[dict]) -> list[int]:
        """How many elements of this rank's shard are in each group; the padding is in the last."""
        shard_size, pieces = flat_layout([p.numel() for p in self.parameters], self.world_size)
        sizes = [0] * len(groups)
        for parameter, start, stop in pieces[dist.get_rank(self.group)]:
            sizes[group_of[parameter]] += stop - start
        sizes[-1] += shard_size - sum(sizes)
        return sizes

    @torch.no_grad()
    def step(self) -> None:
        """Average the ranks' gradients, step, and leave the same new weights on every rank."""
        for part, gradient in zip(self.parts, self._mean_gradient().split(self.sizes), strict=True):
            part.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.shard.copy_(self.master)
        all_gather(self.weights, self.shard, self.group)

    def _mean_gradient(self) -> Tensor:
        """This rank's shard of the mean over the ranks, in the master's dtype."""
        flat = torch.zeros_like(self.weights, dtype=self.master.dtype)
        for p, place in zip(self.parameters, views(flat, self.parameters), strict=True):
            if p.grad is not None:
                place.copy_(p.grad)
        shard = torch.empty_like(self.master)
        reduce_scatter(shard, flat, self.group)
        return shard.div_(self.world_size)

    def zero_grad(self) -> None:
        """Forget the gradients of the model's parameters."""
        for p in self.parameters:
            p.grad = None
