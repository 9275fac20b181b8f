class ShardedGradients:
    def __init__(self, module, group, bucket_bytes=25 * 2**20):
        self.group, self.size, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.buckets = make_buckets(module, bucket_bytes)
        self.flat = [flatten(bucket, self.size) for bucket in self.buckets]
        self.shards = [nn.Parameter(flat.view(self.size, -1)[self.rank]) for flat in self.flat]
        self.of = {p: number for number, bucket in enumerate(self.buckets) for p in bucket}
        self.arrived, self.next, self.queued = set(), 0, False
        for p in self.of:
            p.register_post_accumulate_grad_hook(self.came)

    def came(self, p):
        if not self.queued:
            self.queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self.end)
        self.arrived.add(p)
        while self.next < len(self.buckets) and self.arrived.issuperset(self.buckets[self.next]):
            self.send()

    def send(self):
        number, self.next = self.next, self.next + 1
        flat = torch.zeros_like(self.flat[number])
        at = 0
        for p in self.buckets[number]:
            if p.grad is not None:
                flat[at : at + p.numel()] = p.grad.flatten()
                p.grad = None
            at += p.numel()
        own = torch.empty_like(self.shards[number], requires_grad=False)
        reduce_scatter(own, flat, self.group)
        own /= self.size
        if self.shards[number].grad is None:
            self.shards[number].grad = own
        else:
            self.shards[number].grad += own

    def end(self):
        while self.next < len(self.buckets):
            self.send()
        self.arrived, self.next, self.queued = set(), 0, False

    def gather_weights(self):
        with torch.no_grad():
            for flat, shard in zip(self.flat, self.shards, strict=True):
                all_gather(flat, shard.clone(), self.group)
