"""Random numbers for dropout where some tensors are whole on every rank and others are cut (lesson 07)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor


class RandomStreams:
    """Two streams of random numbers: one that all ranks of a group draw alike, one that is a rank's own."""

    def __init__(self, seed: int, group: dist.ProcessGroup):
        """seed: the same on every rank of the group."""
        self._on_gpu = dist.get_backend(group) == "nccl"
        own = 2 * seed + 1 + 2718 * (1 + dist.get_rank(group))
        self._states = {"shared": self._seeded(2 * seed), "own": self._seeded(own)}

    def shared(self) -> contextlib.AbstractContextManager[None]:
        """Inside, all ranks draw the same numbers: for what is whole on every rank."""
        return self._drawing_from("shared")

    def own(self) -> contextlib.AbstractContextManager[None]:
        """Inside, each rank draws numbers of its own: for what is cut."""
        return self._drawing_from("own")

    @contextlib.contextmanager
    def _drawing_from(self, name: str) -> Iterator[None]:
        before = self._state()
        self._set(self._states[name])
        try:
            yield
        finally:
            self._states[name] = self._state()
            self._set(before)

    def _seeded(self, seed: int) -> Tensor:
        return torch.Generator("cuda" if self._on_gpu else "cpu").manual_seed(seed).get_state()

    def _state(self) -> Tensor:
        return torch.cuda.get_rng_state() if self._on_gpu else torch.get_rng_state()

    def _set(self, state: Tensor) -> None:
        (torch.cuda.set_rng_state if self._on_gpu else torch.set_rng_state)(state)
