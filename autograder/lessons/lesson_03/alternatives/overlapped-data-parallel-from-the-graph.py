"""Hooks on the nodes that add gradients up; each backward has a round of its own. Gradients are replaced."""


class Round:
    """What one backward has seen and sent."""

    def __init__(self, counts):
        self.waits_for = list(counts)
        self.under_way = []


class OverlappedDataParallel(nn.Module):
    def __init__(self, module, group, bucket_bytes=25 * 2**20):
        super().__init__()
        self.module = module
        self.group = group
        broadcast_module(module, group)
        parameters = list(module.parameters())
        self._buckets = [[parameters[i] for i in b] for b in assign_buckets(parameters, bucket_bytes)]
        self._round, self._silent, self._nodes = None, 0, []
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
                node.register_hook(lambda *_, n=number: self._ready(n))
                self._nodes.append(node)  # else it and its hook would be gone before the first forward

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self):
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def _ready(self, number):
        if self._silent:
            return
        if self._round is None:
            self._round = Round(map(len, self._buckets))
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        now = self._round
        now.waits_for[number] -= 1
        while len(now.under_way) < len(self._buckets) and now.waits_for[len(now.under_way)] == 0:
            self._start(now)

    def _start(self, now):
        bucket = self._buckets[len(now.under_way)]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.reshape(-1) for part in parts]) / dist.get_world_size(self.group)
        now.under_way.append((flat, dist.all_reduce(flat, group=self.group, async_op=True)))

    def _end(self):
        now, self._round = self._round, None
        while len(now.under_way) < len(self._buckets):
            self._start(now)
        for bucket, (flat, work) in zip(self._buckets, now.under_way, strict=True):
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = part.view(p.shape).clone()
