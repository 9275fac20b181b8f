"""Weights and gradients are views of two flat tensors; slices of one are sent, of the other stepped."""

from collections.abc import Iterable
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.model import Transformer

ranking_name = ""


class Flat:
    """All parameters in one piece of memory, in the order in which backward is done with them."""

    def __init__(self, parameters: list[nn.Parameter], pieces: int):
        self.parameters = parameters
        sizes = [p.numel() for p in parameters]
        self.weights = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradients = torch.zeros_like(self.weights)
        views = zip(parameters, self.weights.split(sizes), self.gradients.split(sizes), strict=True)
        for p, weight, gradient in views:
            p.data, p.grad = weight.view(p.shape), gradient.view(p.shape)
        self.ends, self.last_of, begin, total = [0], {}, 0, sum(sizes)
        for i, size in enumerate(sizes):
            begin += size
            ahead = total - sizes[-1]  # the last parameter, the table of tokens, goes alone
            if begin >= ahead * len(self.ends) / pieces or i == len(sizes) - 1:
                self.ends.append(begin)
        self.bounds = list(pairwise(self.ends))
        begin = 0
        self.bucket_of = []
        for size in sizes:
            self.bucket_of.append(next(n for n, (low, high) in enumerate(self.bounds) if low <= begin < high))
            begin += size


def train(
    model: Transformer, batches: Iterable[Tensor], group: dist.ProcessGroup, learning_rate: float
) -> list[float]:
    flat = Flat(list(model.parameters())[::-1], 4)
    rank, ranks = group.rank(), group.size()
    losses: list[tuple[Tensor, dist.Work]] = []
    works: list[dist.Work] = []
    left = [0] * len(flat.bounds)
    sending = False

    def arrived(bucket: int) -> None:
        left[bucket] -= 1
        while sending and len(works) < len(left) and left[len(works)] == 0:
            low, high = flat.bounds[len(works)]
            works.append(dist.all_reduce(flat.gradients[low:high], group=group, async_op=True))

    hooks = [
        p.register_post_accumulate_grad_hook(lambda _, bucket=bucket: arrived(bucket))
        for p, bucket in zip(flat.parameters, flat.bucket_of, strict=True)
    ]
    for micro_batches in batches:
        flat.gradients.zero_()
        total = torch.zeros((), dtype=flat.weights.dtype)
        for number, ids in enumerate(micro_batches):
            sending = number == len(micro_batches) - 1
            left[:] = [flat.bucket_of.count(n) for n in range(len(left))]
            mine = ids.chunk(ranks)[rank]
            loss = model.loss(mine[:, :-1], mine[:, 1:]) / (ranks * len(micro_batches))
            loss.backward()
            total += loss.detach()
        losses.append((total, dist.all_reduce(total, group=group, async_op=True)))
        for work, (low, high) in zip(works, flat.bounds, strict=True):
            work.wait()
            flat.weights[low:high].sub_(flat.gradients[low:high], alpha=learning_rate)
        works.clear()
    for hook in hooks:
        hook.remove()
    for p in flat.parameters:
        p.grad = None
    for _, work in losses:
        work.wait()
    return [total.item() for total, _ in losses]
