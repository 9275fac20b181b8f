"""What a process holds that was not there before: memory behind tensors, and numbers kept without one."""

from __future__ import annotations

import array
import gc
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from labkit.torch_private import dense_parts

GPU_STATE_BYTES = 16  # of a random generator on a GPU: its seed and how far it is
FLOAT_BYTES = 8
A_FEW = 512  # bytes of numbers outside of tensors that any part may have, and any import brings along
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Holding:
    """tensors: address -> bytes of the memory behind every tensor and storage that Python can reach.
    numbers: bytes of floats in Python's objects, of NumPy's arrays, and of arrays of bytes.
    """

    tensors: dict[int, int]
    numbers: int


def holding() -> Holding:
    """What this process holds now.

    States of random generators, bytes of which there are always as many, are left out: they are no part of a
    model. Weights that are kept as bytes are.
    """
    gc.collect()
    things = gc.get_objects()
    return Holding(_behind_tensors(things), _numbers(things))


def held_since(before: Holding) -> int:
    """Bytes that are held now and were not when `holding` gave `before`."""
    now = holding()
    fresh = sum(num_bytes for key, num_bytes in now.tensors.items() if key not in before.tensors)
    numbers = now.numbers - before.numbers
    return fresh + (numbers if numbers > A_FEW else 0)


def _of_kind(things: Sequence[object], *kinds: type[Kind]) -> list[Kind]:
    """Those that are instances: there are millions of them, so the class of each is asked once only."""
    found = list(map(type, things))
    wanted = {kind for kind in set(found) if issubclass(kind, kinds)}
    return cast(list[Kind], list(compress(things, map(wanted.__contains__, found))))


def _behind_tensors(things: Sequence[object]) -> dict[int, int]:
    tensors = [part for tensor in _of_kind(things, Tensor) for part in _with_memory(tensor)]
    in_bytes = (t.untyped_storage() for t in tensors if t.dtype == torch.uint8)
    states = {s.data_ptr() for s in in_bytes if s.nbytes() in (torch.get_rng_state().nbytes, GPU_STATE_BYTES)}
    behind = (t.untyped_storage() for t in tensors)
    storages = [*behind, *_of_kind(things, torch.UntypedStorage)]
    return {s.data_ptr(): s.nbytes() for s in storages if s.nbytes() and s.data_ptr() not in states}


def _with_memory(tensor: Tensor) -> list[Tensor]:
    """Tensors with the memory behind this one: itself, or the parts of a sparse one. A tensor that wraps
    others, such as a DTensor, has none of its own.
    """
    if tensor.is_meta:
        return []
    try:
        parts = dense_parts(tensor)
        for part in parts:
            part.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return []
    return parts


def _numbers(things: Sequence[object]) -> int:
    """NumPy's arrays are seen in what refers to them: nothing else knows them. Floats count where there is a
    row of them: the attributes of a watch are no weights.
    """
    inside = gc.get_referents(*things)
    arrays: dict[int, Any] = {id(a): a for a in _of_kind(inside, np.ndarray, bytearray, array.array)}
    in_rows = gc.get_referents(*_of_kind(things, list, set, deque), *_of_kind(inside, tuple))
    deeper = gc.get_referents(*_of_kind(in_rows, tuple))  # a matrix
    floats = sum(kind is float for kind in map(type, [*in_rows, *deeper]))
    return floats * FLOAT_BYTES + sum(_own_bytes(each) for each in arrays.values())


def _own_bytes(kept: np.ndarray | bytearray | array.array[Any]) -> int:
    """None of a view of other memory: what that belongs to is seen by itself."""
    if isinstance(kept, np.ndarray):
        return kept.nbytes if kept.base is None else 0
    return len(kept) * getattr(kept, "itemsize", 1)
