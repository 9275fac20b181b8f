"""Of the later half of the layers a rank holds its shard alone between two steps; the others are whole."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.model import Transformer

ranking_name = ""


class Sharded:
    """Parameters whose weights, cut into equal shards, lie on all ranks."""

    def __init__(self, parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
        self.parameters, self.group = parameters, group
        n, rank = dist.get_world_size(group), dist.get_rank(group)
        numbers = sum(p.numel() for p in parameters)
        each, like = -(-numbers // n), parameters[0]
        self.whole = torch.zeros(each * n, dtype=like.dtype, device=like.device)
        self.bytes = self.whole.untyped_storage().nbytes()
        at = 0
        with torch.no_grad():
            for p in parameters:
                view = self.whole[at : at + p.numel()].view_as(p)
                view.copy_(p)
                p.data = view
                at += p.numel()
        self.shard = self.whole[rank * each : (rank + 1) * each].clone()
        self.missing = 0
        self.gathering: dist.Work | None = None
        self.scattering: dist.Work | None = None

    def gather(self) -> None:
        """Start."""
        self.whole.untyped_storage().resize_(self.bytes)
        self.gathering = dist.all_gather_into_tensor(self.whole, self.shard, group=self.group, async_op=True)

    def ready(self) -> None:
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None

    def begin(self, micro_batches: int) -> None:
        self.missing = micro_batches * len(self.parameters)

    def came(self, _: Tensor) -> None:
        self.missing -= 1
        if self.missing == 0:
            flat = torch.cat([p.grad.flatten() for p in self.parameters])
            for p in self.parameters:
                p.grad = None
            self.flat = torch.cat([flat, flat.new_zeros(self.whole.numel() - flat.numel())])
            self.share = torch.empty_like(self.shard)
            self.scattering = dist.reduce_scatter_tensor(
                self.share, self.flat, group=self.group, async_op=True
            )

    def step(self, learning_rate: float) -> None:
        self.scattering.wait()
        self.shard.sub_(self.share, alpha=learning_rate)
        del self.flat, self.share, self.scattering
        self.whole.untyped_storage().resize_(0)


class Whole:
    """Parameters that every rank has; their gradients are summed."""

    def __init__(self, parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
        self.parameters, self.group, self.missing = parameters, group, 0

    def gather(self) -> None:
        """They are there."""

    def ready(self) -> None:
        """They always are."""

    def begin(self, micro_batches: int) -> None:
        self.missing = micro_batches * len(self.parameters)

    def came(self, _: Tensor) -> None:
        self.missing -= 1
        if self.missing == 0:
            self.flat = torch.cat([p.grad.flatten() for p in self.parameters])
            for p in self.parameters:
                p.grad = None
            self.summing = dist.all_reduce(self.flat, group=self.group, async_op=True)

    def step(self, learning_rate: float) -> None:
        self.summing.wait()
        sizes = [p.numel() for p in self.parameters]
        with torch.no_grad():
            for p, part in zip(self.parameters, self.flat.split(sizes), strict=True):
                p.sub_(part.view_as(p), alpha=learning_rate)
        del self.flat, self.summing


def _buckets(model: Transformer, group: dist.ProcessGroup) -> list[Whole | Sharded]:
    """What is no layer's, then layer by layer."""
    layers = [list(block.parameters()) for block in model.blocks]
    inside = {id(p) for layer in layers for p in layer}
    rest = [p for p in model.parameters() if id(p) not in inside]
    kinds = [Whole if 2 * number < len(layers) else Sharded for number in range(len(layers))]
    return [Whole(rest, group), *(kind(layer, group) for kind, layer in zip(kinds, layers, strict=True))]


def train(
    model: Transformer, batches: Iterable[Tensor], group: dist.ProcessGroup, learning_rate: float
) -> list[float]:
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    buckets = _buckets(model, group)
    for p in model.parameters():
        p.grad = None  # of training before
    handles = [p.register_post_accumulate_grad_hook(b.came) for b in buckets for p in b.parameters]
    for block, bucket in zip(model.blocks, buckets[1:], strict=True):
        handles.append(block.register_forward_pre_hook(lambda module, args, bucket=bucket: bucket.ready()))
    handles.append(model.register_forward_pre_hook(lambda module, args: buckets[0].ready()))
    losses: list[tuple[Tensor, dist.Work]] = []
    for micro_batches in batches:
        m = len(micro_batches)
        for bucket in buckets:
            bucket.gather()
            bucket.begin(m)
        total = 0.0
        for ids in micro_batches.chunk(n, dim=1)[rank]:
            loss = model.loss(ids[:, :-1], ids[:, 1:]) / (n * m)
            loss.backward()
            total = total + loss.detach()
        losses.append((total, dist.all_reduce(total, group=group, async_op=True)))
        for bucket in [*buckets[:0:-1], buckets[0]]:
            bucket.step(learning_rate)
    for bucket in buckets:
        bucket.gather()
    for bucket in buckets:
        bucket.ready()
    for handle in handles:
        handle.remove()
    for _, work in losses:
        work.wait()
    return [value.item() for value, _ in losses]
