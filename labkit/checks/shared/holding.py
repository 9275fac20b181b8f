"""What a process holds that was not there before: memory behind tensors, and numbers kept without one."""

from __future__ import annotations

import array
import gc
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from labkit.checks.source.submission import MODULE_NAME
from labkit.torch_private import dense_parts

GPU_STATE_BYTES = 16  # of a random generator on a GPU: its seed and how far it is
FLOAT_BYTES = 8
_DEEPEST = 2  # tuples or dicts in one another
A_FEW = 64  # bytes of numbers outside of tensors that any part may have
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Holding:
    """tensors: address -> bytes of the memory behind every tensor and storage that Python can reach.
    objects: where all of Python's objects are that it collects. numbers: bytes of floats, of NumPy's arrays
    and of arrays of bytes in what the notebook's global names stand for.
    """

    tensors: dict[int, int]
    objects: frozenset[int]
    numbers: int


def holding() -> Holding:
    """What this process holds now.

    States of random generators, bytes of which there are always as many, are left out: they are no part of a
    model. Weights that are kept as bytes are.
    """
    gc.collect()
    things = gc.get_objects()
    return Holding(_behind_tensors(things), frozenset(map(id, things)), _numbers(_global()))


def held_since(before: Holding) -> int:
    """Bytes that are held now and were not when `holding` gave `before`. To look for numbers in every object
    would take a second: it is those that are new, and the notebook's global ones, that are gone through.
    """
    gc.collect()
    things = gc.get_objects()
    tensors = _behind_tensors(things)
    fresh = sum(num_bytes for key, num_bytes in tensors.items() if key not in before.tensors)
    new = {id(thing): thing for thing in _global()}
    new |= {id(thing): thing for thing in things if id(thing) not in before.objects}
    numbers = _numbers(list(new.values())) - before.numbers
    return fresh + (numbers if numbers > A_FEW else 0)


def _global() -> list[object]:
    """What the notebook's names and the attributes of its classes stand for, and the containers among it."""
    names = vars(sys.modules.get(MODULE_NAME, object))
    classes = [kind for kind in _of_kind(list(names.values()), type) if kind.__module__ == MODULE_NAME]
    values = [value for owner in (names, *map(vars, classes)) for value in owner.values()]
    return [values, *_of_kind(values, list, tuple, set, dict, deque)]


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
    inside = _inside(things)
    arrays: dict[int, Any] = {id(a): a for a in _of_kind(inside, np.ndarray, bytearray, array.array)}
    in_rows = gc.get_referents(*_of_kind(things, list, set, deque), *_of_kind(inside, tuple))
    floats = sum(kind is float for kind in map(type, in_rows))
    return floats * FLOAT_BYTES + sum(_own_bytes(each) for each in arrays.values())


def _inside(things: Sequence[object]) -> list[object]:
    """What these refer to, and what tuples and dicts of plain things do, of which the collector does not
    know.
    """
    found = level = gc.get_referents(*things)
    for _ in range(_DEEPEST):
        unknown = [each for each in _of_kind(level, tuple, dict) if not gc.is_tracked(each)]
        level = gc.get_referents(*unknown)
        found = [*found, *level]
    return found


def _own_bytes(kept: np.ndarray | bytearray | array.array[Any]) -> int:
    """None of a view of other memory: what that belongs to is seen by itself."""
    if isinstance(kept, np.ndarray):
        return kept.nbytes if kept.base is None else 0
    return len(kept) * getattr(kept, "itemsize", 1)
