"""Bytes of tensors that are alive right now, and the most that were: a ledger kept by watching every
operation.

What is alive is counted by storage, each once, from the moment an operation makes it until nothing refers
to it any more, whoever holds it: autograd, a closure, or a list. A saved-tensor hook would see autograd's
share alone.
"""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from labkit.record.threads import InAllThreads
from labkit.torch_private import storage_key, tree_iter


class LiveBytes(InAllThreads):
    """Counts inside `with LiveBytes(...) as live:`; read `live.now` and `live.peak`, in bytes, and
    `live.history`, the bytes after each operation.

    leave_out: tensors that are not counted, such as parameters and their gradients. Storages made before
        the block count from their first use inside it, unless left out. The memory an operation uses within
        itself is not seen. A storage counts with the size it has at that moment: one that is emptied and
        filled again costs nothing in between.
    most: above so many bytes, what an operation leaves counts if it is still there half a second later. A
        backend's own thread may let go of a collective's tensors some time after the caller has its result.
    """

    def __init__(self, leave_out: Iterable[Tensor] = (), most: float = math.inf):
        super().__init__()
        self.most = most
        # holding them keeps their keys from being used again
        self._left_out = {storage_key(s): s for s in _storages(leave_out)}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak = 0
        self.history: list[int] = []

    @property
    def now(self) -> int:
        """Bytes of the counted storages that are alive at this moment."""
        storages = (ref() for ref in list(self._alive.values()))
        return sum(storage.nbytes() for storage in storages if storage is not None)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count(value for value in tree_iter(out) if has_bytes(value))
        self.history.append(self._settled())
        self.peak = max(self.peak, self.history[-1])
        return out

    def _settled(self, seconds: float = 0.5) -> int:
        """Bytes alive now; where that is above `most` and the peak so far, the least in some seconds."""
        over, held = time.monotonic() + seconds, self.now
        while held > max(self.most, self.peak) and time.monotonic() < over:
            time.sleep(seconds / 100)
            held = min(held, self.now)
        return held

    def restart_peak(self) -> None:
        """Measure the peak from here on."""
        self.peak = self.now

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of these from now on, as if an operation had made them."""
        for storage in _storages(tensors):
            key = storage_key(storage)
            if key not in self._left_out and key not in self._alive:
                self._alive[key] = weakref.ref(storage, partial(self._forget, key))

    def _forget(self, key: int, reference: object) -> None:
        self._alive.pop(key, None)


def has_bytes(thing: object) -> bool:
    """Whether this is a tensor with a memory of its own: one that wraps others, such as a DTensor, has none,
    and a sparse one has those of its indices and its values.
    """
    if type(thing) not in (Tensor, nn.Parameter):
        return False
    tensor = cast(Tensor, thing)
    try:
        return tensor.device.type != "meta" and tensor.layout is torch.strided
    except RuntimeError:  # undefined: a backend's thread is letting go of it at this moment (seen with 2.8)
        return False


def _storages(tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
    """The memory behind these, but for those that have lost theirs since they were found."""
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
        except RuntimeError:
            continue
        yield storage


def tensors_of_process() -> list[Tensor]:
    """Every tensor with memory of its own that Python can reach in this process."""
    gc.collect()
    return _reachable_tensors()


def _reachable_tensors() -> list[Tensor]:
    return [thing for thing in gc.get_objects() if has_bytes(thing)]


def bytes_of_process() -> int:
    """Bytes of all tensors of this process, each storage once."""
    return _bytes_behind(tensors_of_process())


def _bytes_behind(tensors: Iterable[Tensor]) -> int:
    storages = {storage_key(s): s for s in _storages(tensors)}
    return sum(storage.nbytes() for storage in storages.values())


def settled_bytes_of_process(seconds: float = 0.5) -> int:
    """The least that `bytes_of_process` sees in some seconds, for what is held after a collective.

    A backend's own thread may let go of a collective's tensors some time after the caller has its result.
    """
    over, least = time.monotonic() + seconds, bytes_of_process()
    while time.monotonic() < over:
        time.sleep(seconds / 10)
        least = min(least, _bytes_behind(_reachable_tensors()))  # who sleeps leaves no new rubbish to collect
    return least


@dataclass(frozen=True)
class WatchedStep:
    """Bytes alive during one forward and backward, without parameters, their gradients, and the input.

    kept: when forward had ended, without its result. peak: the most, in backward. history: after each
    operation. turn: how many operations forward took.
    """

    kept: int
    peak: int
    history: tuple[int, ...]
    turn: int


def watch_step(module: nn.Module, x: Tensor, forward: Callable[[Tensor], Tensor]) -> WatchedStep:
    """Run `forward(x)`, which uses `module`, and backward from ones; report the bytes that were alive."""
    x = x.detach().clone().requires_grad_()
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    ones = torch.ones_like(x)
    with LiveBytes([*module.parameters(), *module.buffers(), *gradients, x, ones]) as live:
        result = forward(x)
        kept, turn = live.now - result.nbytes, len(live.history)
        live.restart_peak()
        result.backward(ones)
        del result
    return WatchedStep(kept, live.peak, tuple(live.history), turn)
