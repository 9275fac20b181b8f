class ShardedOptimizer(torch.optim.Optimizer):
    """Each rank owns a range of one long vector; a group's numbers are picked from it in runs."""

    def __init__(self, parameters, optimizer_class, group, **options):
        told = list(parameters)
        if not isinstance(told[0], dict):
            told = [{"params": told}]
        super().__init__([{**one, "params": list(one["params"])} for one in told], dict(options))
        self.group, self.ranks, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.trained = [p for one in self.param_groups for p in one["params"] if p.requires_grad]
        kinds = [n for n, one in enumerate(self.param_groups) for p in one["params"] if p.requires_grad]
        self.length = -(-sum(p.numel() for p in self.trained) // self.ranks)
        own = self.range_of([p.detach() for p in self.trained])
        kind_of = self.range_of(
            [torch.full((p.numel(),), kind) for kind, p in zip(kinds, self.trained, strict=True)]
        )
        self.runs = [[] for _ in told]
        start, runs = 0, map(Tensor.tolist, kind_of.unique_consecutive(return_counts=True))
        for kind, count in zip(*runs, strict=True):
            self.runs[kind].append(slice(start, start + count))
            start += count
        precise = torch.promote_types(own.dtype, torch.float32)
        self.masters = [nn.Parameter(self.picked(own, runs).to(precise)) for runs in self.runs]
        inner = [{**one, "params": [m]} for one, m in zip(told, self.masters, strict=True)]
        self.optimizer = optimizer_class(inner, **options)

    def picked(self, vector, runs):
        return torch.cat([vector[:0], *(vector[run] for run in runs)])

    def range_of(self, tensors):
        """This rank's range of the vector that these tensors are, end to end."""
        vector = torch.cat([t.flatten() for t in tensors])
        vector = nn.functional.pad(vector, (0, self.length * self.ranks - vector.numel()))
        return vector[self.rank * self.length :][: self.length].clone()

    @torch.no_grad()
    def step(self):
        precise, dtype = self.masters[0].dtype, self.trained[0].dtype
        rows = torch.cat(
            [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in self.trained]
        )
        rows = nn.functional.pad(rows.to(precise), (0, self.length * self.ranks - rows.numel()))
        mean = torch.zeros(self.length, dtype=precise)
        if self.ranks == 1:
            mean = rows
        else:
            reduce_scatter(mean, rows / self.ranks, self.group, async_op=True).wait()
        del rows
        for runs, master in zip(self.runs, self.masters, strict=True):
            master.grad = self.picked(mean, runs)
        self.optimizer.step()
        own = torch.zeros(self.length, dtype=dtype)
        for runs, master in zip(self.runs, self.masters, strict=True):
            news = master.detach().to(dtype).split([run.stop - run.start for run in runs])
            for run, new in zip(runs, news, strict=True):
                own[run] = new
            master.grad = None
        everyones = own.new_zeros(self.ranks, self.length)
        if self.ranks == 1:
            everyones[0] = own
        else:
            all_gather(everyones.view(-1), own, self.group)
        numels = [p.numel() for p in self.trained]
        for p, new in zip(self.trained, everyones.view(-1)[: sum(numels)].split(numels), strict=True):
            p.copy_(new.view(p.shape))

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)
