from functools import partial


class ShardedGradients(nn.Module):
    """Hooks at the nodes of the graph that add up gradients, which live as long as something holds them."""

    def __init__(self, module, group, bucket_bytes=25 * 2**20):
        super().__init__()
        self.group, self.ranks = group, dist.get_world_size(group)
        self.buckets, own, self.nodes = [], [], []
        for members in make_buckets(module, bucket_bytes):
            whole = flatten(members, self.ranks).view(self.ranks, -1)
            own.append(nn.Parameter(whole[dist.get_rank(group)]))
            self.buckets.append((members, whole, own[-1]))
            for p in members:
                node = p.view_as(p).grad_fn.next_functions[0][0]
                node.register_hook(partial(self.added, p))
                self.nodes.append(node)
        self.shards = nn.ParameterList(own)
        self.waiting, self.there = None, set()

    def added(self, p, *_):
        if self.waiting is None:
            self.waiting = iter(self.buckets)
            self.current = next(self.waiting)
            torch.autograd.Variable._execution_engine.queue_callback(self.flush)
        self.there.add(p)
        while self.current is not None and self.there >= set(self.current[0]):
            self.reduce()

    def reduce(self):
        members, whole, shard = self.current
        empty = [torch.zeros_like(p).view(-1) if p.grad is None else None for p in members]
        parts = [p.grad.view(-1) if e is None else e for e, p in zip(empty, members, strict=True)]
        missing = whole.numel() - sum(part.numel() for part in parts)
        flat = torch.cat([*parts, parts[0].new_zeros(missing)])
        for p in members:
            p.grad = None
        del parts
        mean = torch.zeros_like(whole[0])
        reduce_scatter(mean, flat.mul_(1 / self.ranks), self.group)
        shard.grad = mean if shard.grad is None else shard.grad + mean
        self.current = next(self.waiting, None)

    def flush(self):
        while self.current is not None:
            self.reduce()
        self.waiting, self.there = None, set()

    def gather_weights(self):
        for _, whole, shard in self.buckets:
            all_gather(whole.view(-1), shard.detach().clone(), self.group)
