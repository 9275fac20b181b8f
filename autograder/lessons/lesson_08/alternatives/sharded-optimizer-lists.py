"""Collectives of lists; the weights stay where the model has them, the shard is a list of pieces."""


class ShardedOptimizer:
    """reduce_scatter and all_gather of lists; the weights stay where the model put them."""

    def __init__(self, parameters, optimizer_class, group, **options):
        groups = [*parameters]
        if not isinstance(groups[0], Mapping):
            groups = [{"params": groups}]
        self.group, self.ranks, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        groups = [{**g, "params": [p for p in g["params"] if p.requires_grad]} for g in groups]
        self.model = [p for g in groups for p in g["params"]]
        self.dtype = self.model[0].dtype
        self.wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.total = sum(p.numel() for p in self.model)
        self.each = -(-self.total // self.ranks)
        self.low = min(self.rank * self.each, self.total)
        self.high = min(self.low + self.each, self.total)
        self.masters = []
        inner = []
        begin = 0
        for g in groups:
            end = begin + sum(p.numel() for p in g["params"])
            low, high = max(begin, self.low), min(end, self.high)
            if low < high:
                piece = nn.Parameter(self._cut(low, high).to(self.wide))
                self.masters.append((low, high, piece))
                inner.append({**g, "params": [piece]})
            else:
                inner.append({**g, "params": []})
            begin = end
        self.optimizer = optimizer_class(inner, **options)

    def _cut(self, low, high):
        found, at = [], 0
        for p in self.model:
            a, b = max(low - at, 0), min(high - at, p.numel())
            if a < b:
                found.append(p.detach().flatten()[a:b])
            at += p.numel()
        return torch.cat(found)

    @torch.no_grad()
    def step(self):
        gradients = [
            torch.zeros(p.numel(), dtype=self.wide) if p.grad is None else p.grad.to(self.wide).flatten()
            for p in self.model
        ]
        gradients.append(torch.zeros(self.each * self.ranks - self.total, dtype=self.wide))
        flat = torch.cat(gradients)
        del gradients
        out = torch.empty(self.each, dtype=self.wide)
        dist.reduce_scatter(out, list(flat.split(self.each)), op=dist.ReduceOp.SUM, group=self.group)
        del flat
        out.div_(self.ranks)
        for low, high, piece in self.masters:
            piece.grad = out[low - self.low : high - self.low]
        self.optimizer.step()
        new = torch.zeros(self.each, dtype=self.dtype)
        for low, high, piece in self.masters:
            piece.grad = None
            new[low - self.low : high - self.low] = piece.detach().to(self.dtype)
        everyones = [torch.empty_like(new) for _ in range(self.ranks)]
        dist.all_gather(everyones, new, group=self.group)
        whole = torch.cat(everyones)
        at = 0
        for p in self.model:
            p.copy_(whole[at : at + p.numel()].reshape(p.shape))
            at += p.numel()

    def zero_grad(self):
        for p in self.model:
            p.grad = None
