"""Weights are new tensors each time they are gathered. Autograd keeps a note of where a weight lies instead
of the weight, and finds it in what is gathered for backward. An autograd function begins a unit's backward.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten


class _Flat:
    """A flat tensor that exists in pieces; `whole` while it is gathered."""

    def __init__(self, parameters: list[nn.Parameter], group: dist.ProcessGroup):
        self.parameters, self.group, self.ranks = parameters, group, dist.get_world_size(group)
        self.dtype, self.numel = parameters[0].dtype, sum(p.numel() for p in parameters)
        size = -(-self.numel // self.ranks)
        laid = nn.functional.pad(
            torch.cat([p.detach().reshape(-1) for p in parameters]), (0, size * self.ranks - self.numel)
        )
        own = (
            laid[dist.get_rank(group) * size :][:size]
            .to(torch.promote_types(self.dtype, torch.float32))
            .clone()
        )
        self.trained = parameters[0].requires_grad
        self.shard = nn.Parameter(own, requires_grad=self.trained)
        self.whole: Tensor | None = None
        self.work: dist.Work | None = None
        self.gradients: dict[int, Tensor] = {}
        self.users: list[int] = []
        self.shapes = [p.shape for p in parameters]
        self.drop()
        if self.trained:
            for index, p in enumerate(parameters):
                p.register_post_accumulate_grad_hook(partial(self._keep, index))

    def fetch(self) -> None:
        if self.whole is None:
            self.whole = torch.empty(self.shard.numel() * self.ranks, dtype=self.dtype)
            self.work = all_gather(self.whole, self.shard.detach().to(self.dtype), self.group, async_op=True)

    def ready(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None
            begin = 0
            for p, shape in zip(self.parameters, self.shapes, strict=True):
                p.data = self.whole[begin : begin + shape.numel()].view(shape)
                begin += shape.numel()

    def drop(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None
        self.whole = None
        for p, shape in zip(self.parameters, self.shapes, strict=True):
            p.data = torch.empty(1, dtype=self.dtype).expand(shape)  # its shape, and next to no memory

    def _keep(self, index: int, p: nn.Parameter) -> None:
        gradient = p.grad.to(self.shard.dtype)
        p.grad = None
        self.gradients[index] = self.gradients[index] + gradient if index in self.gradients else gradient

    def scatter(self) -> None:
        whole = torch.zeros(self.shard.numel() * self.ranks, dtype=self.shard.dtype)
        begin = 0
        for index, shape in enumerate(self.shapes):
            if index in self.gradients:
                whole[begin : begin + shape.numel()] = self.gradients.pop(index).reshape(-1)
            begin += shape.numel()
        part = torch.empty_like(self.shard, requires_grad=False)
        reduce_scatter(part, whole, self.group)
        part /= self.ranks
        self.shard.grad = part if self.shard.grad is None else self.shard.grad + part


class _BeforeBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, enter, *tensors):
        ctx.enter = enter
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        ctx.enter()
        return None, *gradients


class FullyShardedModule(nn.Module):
    def __init__(
        self, module: nn.Module, units: Sequence[nn.Module], group: dist.ProcessGroup, prefetch: int = 1
    ):
        super().__init__()
        self.module = module
        self.units = list(units)
        self.prefetch = prefetch
        owners: dict[nn.Parameter, _Flat] = {}
        self._flats: list[_Flat] = []
        self._needs: list[list[_Flat]] = []
        covered = {p for unit in self.units for p in unit.parameters()}
        missing = [name for name, p in module.named_parameters() if p not in covered]
        if missing:
            raise ValueError(f"no unit has {', '.join(missing)}")
        for number, unit in enumerate(self.units):
            fresh = [p for p in unit.parameters() if p not in owners]
            for some in ([p for p in fresh if p.requires_grad], [p for p in fresh if not p.requires_grad]):
                if some:
                    flat = _Flat(some, group)
                    self._flats.append(flat)
                    owners.update(dict.fromkeys(some, flat))
            self._needs.append(list({id(owners[p]): owners[p] for p in unit.parameters()}.values()))
            for flat in self._needs[-1]:
                flat.users.append(number)
            unit.register_forward_pre_hook(partial(self._before, number))
            unit.register_forward_hook(partial(self._after, number))
        self._owners = owners
        self.shards = [flat.shard for flat in self._flats if flat.trained]
        self._to_come = [0] * len(self.units)
        self._gone = [0] * len(self.units)
        self._at: int | None = None
        self._running = False

    def _enter(self, number: int, step: int) -> None:
        ahead = [
            n for n in range(number, number + step * (self.prefetch + 1), step) if 0 <= n < len(self.units)
        ]
        wanted = [flat for n in ahead for flat in self._needs[n]]
        for flat in self._flats:
            if flat.whole is not None and flat not in wanted:
                flat.drop()
        for flat in wanted:
            flat.fetch()
        for flat in self._needs[number]:
            flat.ready()

    def _before(self, number: int, unit: nn.Module, args: tuple) -> None:
        self._enter(number, 1)

    def _after(self, number: int, unit: nn.Module, args: tuple, out: object):
        leaves, form = tree_flatten(out)
        where = [i for i, t in enumerate(leaves) if isinstance(t, Tensor) and t.requires_grad]
        if not where:
            return None
        self._to_come[number] += 1
        for i, t in zip(
            where,
            _BeforeBackward.apply(partial(self._backward, number), *[leaves[i] for i in where]),
            strict=True,
        ):
            leaves[i] = t
        return tree_unflatten(leaves, form)

    def _backward(self, number: int) -> None:
        if not self._running:
            self._running = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        self._leave()
        self._at = number
        self._enter(number, -1)

    def _leave(self) -> None:
        if self._at is not None:
            self._gone[self._at] += 1
            for flat in self._needs[self._at]:
                if flat.trained and all(self._gone[n] == self._to_come[n] for n in flat.users):
                    flat.scatter()
            self._at = None

    def _end(self) -> None:
        self._leave()
        for flat in self._flats:
            begun = any(self._gone[n] for n in flat.users)
            if flat.trained and begun and any(self._gone[n] != self._to_come[n] for n in flat.users):
                flat.scatter()
        self._drop_all()
        self._to_come = [0] * len(self.units)
        self._gone = [0] * len(self.units)
        self._running = False

    def _drop_all(self) -> None:
        for flat in self._flats:
            if flat.whole is not None:
                flat.drop()

    def _pack(self, tensor: Tensor) -> object:
        key = tensor.untyped_storage().data_ptr()
        for flat in self._flats:
            if flat.whole is not None and flat.whole.untyped_storage().data_ptr() == key:
                return flat, tensor.shape, tensor.stride(), tensor.storage_offset()
        return tensor

    def _unpack(self, kept: object) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        flat, shape, stride, offset = kept
        flat.fetch()
        flat.ready()
        return flat.whole.as_strided(shape, stride, offset)

    def forward(self, *args, **kwargs):
        counted = list(self._to_come)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                return self.module(*args, **kwargs)
        except BaseException:
            self._to_come = counted
            raise
        finally:
            self._drop_all()

    @torch.no_grad()
    def full_weights(self) -> dict[str, Tensor]:
        copies: dict[nn.Parameter, Tensor] = {}
        for flat in self._flats:
            flat.fetch()
            flat.ready()
            copies.update({p: p.detach().clone() for p in flat.parameters})
            flat.drop()
        return {name: copies[p] for name, p in self.module.named_parameters()}
