class ShardedOptimizer:
    def __init__(self, parameters, optimizer_class, group, **options):
        groups = list(parameters)
        groups = [dict(g) for g in groups] if isinstance(groups[0], dict) else [{"params": groups}]
        self.group, self.size, rank = group, dist.get_world_size(group), dist.get_rank(group)
        for g in groups:
            g["params"] = [p for p in g["params"] if p.requires_grad]
        self.parameters = [p for g in groups for p in g["params"]]
        owner = [number for number, g in enumerate(groups) for _ in g["params"]]
        self.shard_size, pieces = flat_layout([p.numel() for p in self.parameters], self.size)
        self.pieces, inner = [], [{**g, "params": []} for g in groups]
        for index, start, stop in pieces[rank]:
            whole = self.parameters[index].detach().flatten()[start:stop]
            master = nn.Parameter(whole.to(torch.promote_types(whole.dtype, torch.float32), copy=True))
            self.pieces.append(master)
            inner[owner[index]]["params"].append(master)
        self.optimizer = optimizer_class(inner, **options)

    @torch.no_grad()
    def step(self):
        like = self.parameters[0]
        dtype = torch.promote_types(like.dtype, torch.float32)
        flat = like.new_zeros(self.size * self.shard_size, dtype=dtype)
        at = 0
        for p in self.parameters:
            if p.grad is not None:
                flat[at : at + p.numel()] = p.grad.flatten()
            at += p.numel()
        mean = flat.new_zeros(self.shard_size)
        dist.reduce_scatter_tensor(mean, flat, group=self.group)
        mean /= self.size
        at = 0
        for piece in self.pieces:
            piece.grad = mean[at : at + piece.numel()]
            at += piece.numel()
        self.optimizer.step()
        own = like.new_zeros(self.shard_size)
        at = 0
        for piece in self.pieces:
            own[at : at + piece.numel()] = piece
            piece.grad = None
            at += piece.numel()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own, group=self.group)
        joined, at = torch.cat(parts), 0
        for p in self.parameters:
            p.copy_(joined[at : at + p.numel()].view_as(p))
            at += p.numel()

    def zero_grad(self):
        for p in self.parameters:
            if p.grad is not None:
                p.grad.zero_()
