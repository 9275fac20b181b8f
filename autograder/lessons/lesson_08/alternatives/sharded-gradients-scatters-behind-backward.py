class ShardedGradients:
    """Scatters the gradients of `module` during backward; each rank of `group` keeps its shards (stage 2)."""

    shards: list[nn.Parameter]  # this rank's slice of each bucket's flat weights, for an optimizer

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, bucket_bytes: int = 25 * 2**20):
        """module: equal on every rank. Its buckets are `make_buckets(module, bucket_bytes)`."""
        self.group, self.world_size = group, dist.get_world_size(group)
        self.buckets = make_buckets(module, bucket_bytes)
        self.weights = [flatten(bucket, self.world_size) for bucket in self.buckets]
        rank = dist.get_rank(group)
        self.shards = [nn.Parameter(flat.chunk(self.world_size)[rank]) for flat in self.weights]
        for number, bucket in enumerate(self.buckets):
            for position, p in enumerate(bucket):
                p.register_post_accumulate_grad_hook(self._hook_of(number, position))
        self._reset()

    def _reset(self) -> None:
        self.gradients: dict[int, Tensor] = {}  # flat ones, of buckets that wait for more
        self.missing = [len(bucket) for bucket in self.buckets]
        self.scattered = 0
        self.going: list = []
        self.callback_queued = False

    def _hook_of(self, number: int, position: int):
        def hook(p: nn.Parameter) -> None:
            if not self.callback_queued:
                self.callback_queued = True
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            place = views(self._gradient(number), self.buckets[number])[position]
            torch.div(p.grad, self.world_size, out=place)
            p.grad = None
            self.missing[number] -= 1
            while self.scattered < len(self.buckets) and not self.missing[self.scattered]:
                self._scatter_next()

        return hook

    def _gradient(self, number: int) -> Tensor:
        if number not in self.gradients:
            self.gradients[number] = torch.zeros_like(self.weights[number])
        return self.gradients[number]

    def _scatter_next(self) -> None:
        shard = self.shards[self.scattered]
        self._arrive()
        mean = torch.empty_like(shard, requires_grad=False)
        flat = self._gradient(self.scattered)
        handle = reduce_scatter(mean, flat, self.group, async_op=True)
        self.going = [(shard, mean, handle)]
        del self.gradients[self.scattered]
        self.scattered += 1

    def _finish(self) -> None:
        while self.scattered < len(self.buckets):
            self._scatter_next()
        self._arrive()
        self._reset()

    def _arrive(self) -> None:
        for shard, mean, handle in self.going:
            handle.wait()
            shard.grad = mean if shard.grad is None else shard.grad + mean
        self.going = []

    @torch.no_grad()
    def gather_weights(self) -> None:
        """After an optimizer's step over `shards`: complete the module's weights on every rank."""
        for flat, shard in zip(self.weights, self.shards, strict=True):
            all_gather(flat, shard, self.group)
