"""Which device each piece of memory belongs to.

A tensor on a stand-in device is an ordinary CPU tensor whose storage is written down here. All views of a
storage share its entry, and the entry goes when the storage does, so memory is given back exactly when a GPU
would get it back: when the last tensor that uses it is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from labkit.devices.ledger import Ledger

HOST = None
"""The home of tensors that are on no stand-in device."""

Home = int | None  # the index of a stand-in device, or HOST


@dataclass
class _Entry:
    home: int
    num_bytes: int
    watch: weakref.ref[Any]


class Placement:
    """Storages on stand-in devices, with their bytes counted in the devices' ledgers."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.ledgers = ledgers
        self._entries: dict[int, _Entry] = {}
        self._open: dict[int, weakref.ref[Any]] = {}
        self._pinned: dict[int, weakref.ref[Any]] = {}

    def home(self, tensor: torch.Tensor) -> Home:
        """The device a tensor's memory belongs to; HOST for every other tensor."""
        storage = storage_of(tensor)
        entry = self._entries.get(storage._cdata) if storage is not None else None
        return entry.home if entry is not None else HOST

    def put(self, tensor: torch.Tensor, home: Home) -> torch.Tensor:
        """Write down that a tensor's memory belongs to `home`. torch.OutOfMemoryError when it is full."""
        storage = storage_of(tensor)
        if storage is None or home is HOST:
            return tensor
        key, num_bytes = storage._cdata, storage.nbytes()
        known = self._entries.get(key)
        if known is None:
            self.ledgers[home].take(num_bytes)
            self._entries[key] = _Entry(home, num_bytes, weakref.ref(storage, partial(self._ended, key)))
        elif known.num_bytes != num_bytes:
            self._resized(known, num_bytes)
        self._open.pop(key, None)
        return tensor

    def leave_open(self, tensor: torch.Tensor) -> None:
        """The tensor was made inside torch without naming a device: it belongs wherever it is used first."""
        storage = storage_of(tensor)
        if storage is not None:
            key = storage._cdata
            self._open[key] = weakref.ref(storage, lambda _: self._open.pop(key, None))

    def is_open(self, tensor: torch.Tensor) -> bool:
        """Whether `leave_open` was said of the tensor's memory, and nothing has settled it since."""
        storage = storage_of(tensor) if self._open else None
        return storage is not None and storage._cdata in self._open

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Write down that a tensor is in pinned host memory."""
        storage = storage_of(tensor)
        if storage is not None:
            key = storage._cdata
            self._pinned[key] = weakref.ref(storage, lambda _: self._pinned.pop(key, None))
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in pinned host memory."""
        storage = storage_of(tensor)
        return storage is not None and storage._cdata in self._pinned

    def forget_all(self) -> None:
        """End: every tensor is a plain CPU tensor again."""
        self._entries.clear()
        self._open.clear()
        self._pinned.clear()

    def _ended(self, key: int, _: object) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.ledgers[entry.home].give_back(entry.num_bytes)

    def _resized(self, entry: _Entry, num_bytes: int) -> None:
        ledger = self.ledgers[entry.home]
        ledger.give_back(entry.num_bytes)
        entry.num_bytes = 0
        ledger.take(num_bytes)
        entry.num_bytes = num_bytes


def storage_of(tensor: torch.Tensor) -> Any:
    """A tensor's storage; None for the kinds that have none (sparse, wrappers)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
