from collections.abc import Iterable
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import nn


def _gather(whole, part, group):
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(whole, part, group=group)


def _scatter(part, whole, group):
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(part, whole, group=group)


class ShardedOptimizer:
    """The flat tensor has the last group first, and its padding in the group that lies last in it."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict],
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup,
        **options: object,
    ):
        param_groups, loose = [], []
        for item in parameters:
            if isinstance(item, dict):
                params = item["params"]
                params = [params] if torch.is_tensor(params) else [*params]
                param_groups.append(({k: v for k, v in item.items() if k != "params"}, params))
            else:
                loose.append(item)
        if loose:
            param_groups.append(({}, loose))
        self._all = {id(p): p for _, ps in param_groups for p in ps}
        self._group, self._d, self._rank = group, group.size(), group.rank()

        backwards = []  # (group, its trained parameters), the last group first
        seen = set()
        for number in reversed(range(len(param_groups))):
            mine = []
            for p in reversed(param_groups[number][1]):
                if p.requires_grad and id(p) not in seen:
                    seen.add(id(p))
                    mine.append(p)
            backwards.append((number, mine))
        self._order = [p for _, ps in backwards for p in ps]
        some = self._order[0]
        total = sum(p.numel() for p in self._order)
        self._size = -(-total // self._d)
        self._weights = torch.zeros(self._d, self._size, dtype=some.dtype, device=some.device)
        line = self._weights.view(-1)
        with torch.no_grad():
            for p, stop in zip(self._order, accumulate(p.numel() for p in self._order), strict=True):
                place = line[stop - p.numel() : stop].view(p.shape)
                place.copy_(p)
                p.data = place
        wide = torch.promote_types(some.dtype, torch.float32)
        cuts = list(accumulate((sum(p.numel() for p in ps) for _, ps in backwards), initial=0))
        cuts[-1] = self._d * self._size  # the padding
        begin, end = self._rank * self._size, (self._rank + 1) * self._size
        tensors = {}
        for (number, _), low, high in zip(backwards, cuts[:-1], cuts[1:], strict=True):
            low, high = max(low, begin), min(high, end)
            own = line[low:high] if low < high else line[:0]
            tensors[number] = nn.Parameter(own.detach().to(wide, copy=True))
        self._mine = [tensors[number] for number, _ in backwards]
        self.optimizer = optimizer_class(
            [{"params": [tensors[i]], **kept} for i, (kept, _) in enumerate(param_groups)], **options
        )

    @torch.no_grad()
    def step(self) -> None:
        some = self._mine[0]
        parts = [
            torch.zeros(p.numel(), dtype=some.dtype, device=some.device)
            if p.grad is None
            else p.grad.reshape(-1).to(some.dtype)
            for p in self._order
        ]
        parts.append(some.new_zeros(self._weights.numel() - sum(map(len, parts))))
        whole = torch.cat(parts)
        del parts
        own = some.new_empty(self._size)
        _scatter(own, whole, self._group)
        del whole
        own.div_(self._d)
        for tensor, grad in zip(self._mine, own.split([t.numel() for t in self._mine]), strict=True):
            tensor.grad = grad.clone()
        del own
        self.optimizer.step()
        self._weights[self._rank].copy_(torch.cat([t.detach() for t in self._mine]))
        _gather(self._weights.view(-1), self._weights[self._rank].clone(), self._group)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for p in self._all.values():
            p.grad = None
