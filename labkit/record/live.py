"""Bytes of tensors that are alive right now, and the most that were: a ledger kept by watching every
operation.

What is alive is counted by storage, each once, from the moment an operation makes it until nothing refers
to it any more, whoever holds it: autograd, a closure, or a list. A saved-tensor hook would see autograd's
share alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.torch_private import TorchDispatchMode, storage_key, tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts inside `with LiveBytes(...) as live:`; read `live.now` and `live.peak`, in bytes, and
    `live.history`, the bytes after each operation.

    leave_out: tensors that are not counted, such as parameters and their gradients. Storages made before
        the block count from their first use inside it, unless left out. The memory an operation uses within
        itself is not seen.
    """

    def __init__(self, leave_out: Iterable[Tensor] = ()):
        super().__init__()
        # holding them keeps their keys from being used again
        self._held = [tensor.untyped_storage() for tensor in leave_out]
        self._sizes = dict.fromkeys((storage_key(storage) for storage in self._held), 0)
        self.now = 0
        self.peak = 0
        self.history: list[int] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, Tensor):
                self._note(value.untyped_storage())
        self.history.append(self.now)
        return out

    def restart_peak(self) -> None:
        """Measure the peak from here on."""
        self.peak = self.now

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage_key(storage)
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)


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
