"""Sees every operation torch carries out: refuses those a GPU would refuse, and places what they make."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.devices.messages import mixed_devices, not_strided, wrong_index_device
from labkit.devices.placement import HOST, Home, Placement, storage_of
from labkit.devices.queues import Queues
from labkit.torch_private import TorchDispatchMode

aten = torch.ops.aten
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
ONE_VALUE = "aten::_local_scalar_dense"
# What else gives the host a value, or a tensor whose size depends on values: the host has to wait for these.
READS_A_VALUE = {
    *("aten::equal", "aten::allclose", "aten::nonzero", "aten::masked_select"),
    *("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive"),
    "aten::bincount",
}


class Watcher(TorchDispatchMode):
    """Holds every operation to the rule that its tensors are on one device.

    CUDA's exceptions are kept: a CPU tensor of no dimensions may join any operation, a copy may cross, and a
    device's tensor may be indexed with indices on the CPU. Lists (foreach, fused optimizers) are held to it
    position by position.

    copy_into: carries out a copy (to, from, non_blocking) from one device to another. read: is told of a
    tensor whose value the host gets.
    """

    def __init__(
        self,
        placement: Placement,
        queues: Queues,
        copy_into: Callable[..., Tensor],
        read: Callable[[Tensor], None],
    ) -> None:
        super().__init__()
        self.placement, self.queues, self.copy_into, self.read = placement, queues, copy_into, read
        self.paused = False
        self.making: list[Home] = []  # set while Python asks torch for a new tensor on a known device

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Operations inside are the stand-ins' own work: not checked, not placed."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        name = func._schema.name
        if name == "aten::copy_" and self._crosses(args):
            return self.copy_into(args[0], args[1], *args[2:3], **kwargs)
        if "_foreach_" in name or "_fused_" in name:
            return self._on_lists(func, args, kwargs)
        tensors = list(tensors_of(args, kwargs))
        if not tensors:
            return self._new(func, args, kwargs)
        checked = [args[0], *tensors_of(args[2:], kwargs)] if name in INDEXING else tensors
        home = self._common_home(func, checked, args, kwargs)
        if name in INDEXING:
            self._check_indices(home, args)
        if home is not HOST:
            queue = self.queues.current(home)
            if name == ONE_VALUE:
                self.read(tensors[0])
            queue.finish() if name in READS_A_VALUE or _picks_by_mask(name, args) else queue.reach()
        out = func(*args, **kwargs)
        self._settle(out, home, open_inputs=home is HOST and any(map(self.placement.is_open, tensors)))
        return out

    def _crosses(self, args: Sequence[Any]) -> bool:
        return self.placement.home(args[0]) != self.placement.home(args[1])

    def _common_home(self, func: Any, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> Home:
        homes = {self.placement.home(t) for t in tensors}
        if len(homes) == 1:
            return homes.pop()
        on_devices = homes - {HOST}
        strangers = [t for t in tensors if self.placement.home(t) is HOST]
        written = _written(func, args, kwargs)
        refused = [t for t in strangers if t.dim() or id(t) in written]
        refused = [t for t in refused if not self.placement.is_open(t)]
        if len(on_devices) > 1 or refused:
            raise mixed_devices(func, self._named_devices(func, args, kwargs, written))
        home = on_devices.pop()
        for tensor in strangers:
            if self.placement.is_open(tensor):
                self.placement.put(tensor, home)
        return home

    def _named_devices(
        self, func: Any, args: Any, kwargs: Any, written: set[int]
    ) -> list[tuple[str, torch.device]]:
        """(argument, device) of every tensor that counts, in the order of the operation's arguments.

        written: what the operation writes to; it counts without dimensions too.
        """
        names = [argument.name for argument in func._schema.arguments]
        named = [*zip(names, args, strict=False), *kwargs.items()]
        found = [(name, t) for name, value in named for t in tensors_of((value,), {})]
        counts = [t.dim() or id(t) in written or self.placement.home(t) is not HOST for _, t in found]
        return [(name, t.device) for (name, t), does in zip(found, counts, strict=True) if does]

    def _check_indices(self, home: Home, args: Sequence[Any]) -> None:
        for index in tensors_of(args[1:2], {}):
            if self.placement.home(index) not in (HOST, home):
                raise wrong_index_device(args[0].device)

    def _new(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation without tensors among its arguments makes a new one, or does nothing with tensors."""
        if self.making and self.making[-1] is not HOST and "device" in kwargs:
            size = func(*args, **{**kwargs, "device": torch.device("meta"), "pin_memory": False})
            self.placement.ledgers[self.making[-1]].require(size.numel() * size.element_size())
        out = func(*args, **kwargs)
        if not self.making:
            for tensor in tensors_of((out,), {}):
                self.placement.leave_open(tensor)
        return out

    def _on_lists(self, func: Any, args: Any, kwargs: Any) -> Any:
        lists = [a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple)) and a]
        lists = [a for a in lists if isinstance(a[0], Tensor)]
        homes: list[Home] = []
        for position in range(max(map(len, lists), default=0)):
            row = [a[position] for a in lists if position < len(a)]
            homes.append(self._common_home(func, row, (row,), {}))
        for index in {h for h in homes if h is not HOST}:
            self.queues.current(index).reach()
        if func._schema.name.endswith("_foreach_copy_"):
            for destination, source in zip(*lists, strict=True):
                destination.copy_(source)
            return None
        out = func(*args, **kwargs)
        if isinstance(out, (list, tuple)):
            for tensor, position_home in zip(out, homes, strict=False):
                self._settle(tensor, position_home, open_inputs=False)
        return out

    def _settle(self, out: Any, home: Home, open_inputs: bool) -> None:
        if home is HOST and not open_inputs:
            return
        for tensor in tensors_of((out,), {}):
            if home is HOST:
                self.placement.leave_open(tensor)
            elif storage_of(tensor) is None:
                raise not_strided(tensor, torch.device("cuda", home))
            else:
                self.placement.put(tensor, home)


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> set[int]:
    """The ids of the tensors that an operation writes to: the one it changes in place, or `out`."""
    arguments = func._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    written = [one.name for one in arguments if one.alias_info is not None and one.alias_info.is_write]
    return {id(t) for t in tensors_of((given.get(name) for name in written), {})}


def _picks_by_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether a mask says how many elements there will be, as in `x[x > 0]`."""
    return name == "aten::index" and any(i.dtype is torch.bool for i in tensors_of(args[1:2], {}))


def tensors_of(args: Iterable[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Every tensor among the arguments, inside lists too."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value, {})
