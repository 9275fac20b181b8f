"""What a process holds that was not there before: memory behind tensors, and numbers kept without one."""

from __future__ import annotations

import array
import gc
import sys
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from labkit.checks.shared.generator_states import has_more_to_give, is_generator_state
from labkit.checks.shared.named import led_to_by_names, named_objects
from labkit.torch_private import dense_parts

FLOAT_BYTES = 8
MOST_TO_COUNT = 2**40
WORD = 2**64
SETTINGS = 64  # entries of a dict that may be the attributes of something, some of which are numbers
LONG = 256  # bytes that are more than a short text
OWN_MEMORY = 512  # what is no larger is in memory that Python has set aside
TEXTS = 2048  # characters of all texts that a part may have
_DEEPEST = 2  # tuples or dicts in one another
MOST_WAITING = 2  # states of random generators with bytes that no seed decides
A_FEW = 64  # bytes of numbers outside of tensors that any part may have
USUAL = 16 * 2**10  # bytes behind a notebook's names: a mask or two, that are made once for all calls
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Holding:
    """tensors: address -> bytes of the memory behind every tensor and storage that Python can reach, but by
    the notebook's names: what was set aside there beforehand may be filled later, and counts as new.
    objects: where each of Python's objects is that it collects -> how much it contains. named: where the
    objects are that the notebook's names and its classes' attributes stand for.
    """

    tensors: dict[int, int]
    objects: dict[int, int]
    named: frozenset[int]


def holding() -> Holding:
    """What this process holds now.

    States of random generators are left out: they are no part of a model. Weights that are kept as bytes of
    the same number are.
    """
    gc.collect()
    things = gc.get_objects()
    set_aside = _set_aside()
    tensors = {key: n for key, n in _behind_tensors(things).items() if key not in set_aside}
    return Holding(tensors, _sizes(things), frozenset(map(id, named_objects())))


def held_since(before: Holding) -> int:
    """Bytes that are held now and were not when `holding` gave `before`. To look for numbers in every object
    would take a second: it is those that are new, or of another size, that are gone through.
    """
    fresh, changed = _since(before)
    numbers = _numbers(changed)
    return fresh + (numbers if numbers > A_FEW else 0)


def memory_since(before: Holding) -> int:
    """As `held_since`, in tensors and arrays alone: where calls were recorded meanwhile, in numbers and texts
    without end.
    """
    fresh, changed = _since(before)
    return fresh + _in_arrays(_inside(changed))


def _since(before: Holding) -> tuple[int, list[object]]:
    """Bytes behind tensors that are new, and the objects that are new or of another size."""
    gc.collect()
    things = gc.get_objects()
    tensors, sizes, known = _behind_tensors(things), _sizes(things), before.objects
    fresh = sum(num_bytes for key, num_bytes in tensors.items() if key not in before.tensors)
    changed = [thing for thing in things if known.get(id(thing)) != sizes[id(thing)]]
    return fresh, [*changed, [thing for thing in named_objects() if id(thing) not in before.named]]


def bytes_of_names() -> int:
    """Bytes of tensors and NumPy's arrays that the notebook's names lead to; 0 where it is no more than
    `USUAL`. To be taken off what a process holds before something is weighed.
    """
    return sum(_set_aside().values())


def _set_aside() -> dict[int, int]:
    found = list(led_to_by_names())
    arrays = {id(array): array.nbytes for array in _of_kind(found, np.ndarray) if array.base is None}
    behind = _behind_tensors(found) | arrays
    return behind if sum(behind.values()) > USUAL else {}


def objects() -> dict[int, int]:
    """Where each of Python's objects is that it collects -> how much it contains."""
    return _sizes(gc.get_objects())


def spelled_since(known: dict[int, int]) -> int:
    """Bytes in short bytes and texts of what is new, or of another size, since `objects` gave `known`: none
    of these is memory of the C library's.
    """
    things = gc.get_objects()
    sizes = _sizes(things)
    changed = [thing for thing in things if thing is not known and known.get(id(thing)) != sizes[id(thing)]]
    return _spelled([each for each in _reached(changed) if sys.getsizeof(each) <= OWN_MEMORY])


def _reached(things: Sequence[object]) -> list[bytes | str | int]:
    """Bytes, texts and whole numbers that these contain."""
    in_rows = gc.get_referents(*_of_kind(things, list, set, deque))
    return _of_kind([*_inside(things), *in_rows], bytes, str, int)


def _sizes(things: Sequence[object]) -> dict[int, int]:
    sizes = dict.fromkeys(map(id, things), 0)
    sizes.update((id(row), len(row)) for row in _of_kind(things, list, dict, set, deque))
    return sizes


def _of_kind(things: Sequence[object], *kinds: type[Kind]) -> list[Kind]:
    """Those that are instances: there are millions of them, so the class of each is asked once only."""
    found = list(map(type, things))
    wanted = {kind for kind in set(found) if issubclass(kind, kinds)}
    return cast(list[Kind], list(compress(things, map(wanted.__contains__, found))))


def _behind_tensors(things: Sequence[object]) -> dict[int, int]:
    """Address -> bytes of the memory behind the tensors and storages among these."""
    of_tensors = [storage for tensor in _of_kind(things, Tensor) for storage in _memory_of(tensor)]
    storages = [*of_tensors, *_of_kind(things, torch.UntypedStorage)]
    behind = {s.data_ptr(): s for s in storages if s.nbytes()}
    states = {address: s for address, s in behind.items() if is_generator_state(s)}
    waiting = [address for address, s in states.items() if s.device.type == "cpu" and has_more_to_give(s)]
    free = states.keys() - set(waiting[MOST_WAITING:])
    return {address: s.nbytes() for address, s in behind.items() if address not in free}


def _memory_of(tensor: Tensor) -> list[torch.UntypedStorage]:
    """The memory behind this tensor, or behind the parts of a sparse one. One that wraps others, such as a
    DTensor, has none of its own, and one that a backend's thread lets go of at this moment has none any more.
    """
    if tensor.is_meta:
        return []
    try:
        # the memory of one of mkldnn's has no address
        parts = [tensor.to_dense()] if tensor.is_mkldnn else dense_parts(tensor)
        storages = [part.untyped_storage() for part in parts]
        for storage in storages:
            storage.data_ptr()
    except RuntimeError:
        return []
    return storages


def _numbers(things: Sequence[object]) -> int:
    """NumPy's arrays are seen in what refers to them: nothing else knows them. Numbers count where there are
    many together, and whole ones in rows where they are too large to count anything with.
    """
    inside = _inside(things)
    in_rows = gc.get_referents(*_of_kind(things, list, set, deque), *_of_kind(inside, tuple))
    by_name = {id(found): found for found in _of_kind([*things, *inside], dict)}
    numbers = sum(map(_numbers_in, [in_rows, *(d.values() for d in by_name.values() if len(d) > SETTINGS)]))
    return numbers * FLOAT_BYTES + _in_arrays(inside) + _spelled([*inside, *in_rows])


def _in_arrays(things: Sequence[object]) -> int:
    """Bytes of the arrays among these."""
    alone = _of_kind(things, np.ndarray, bytearray, array.array)
    return sum(_own_bytes(each) for each in {id(a): a for a in alone}.values())


def _spelled(things: Sequence[object]) -> int:
    """Bytes in what can hold numbers in any form; none in a few short ones, or in names."""
    in_bytes = sum(map(len, {id(each): each for each in _of_kind(things, bytes)}.values()))
    in_bytes += sum({id(each): _bytes_of(each) for each in _of_kind(things, int)}.values())
    in_texts = sum(map(len, {id(each): each for each in _of_kind(things, str)}.values()))
    return (in_bytes if in_bytes >= LONG else 0) + (in_texts if in_texts > TEXTS else 0)


def _bytes_of(number: int) -> int:
    """None of one that fits into a word: those count in rows."""
    return (number.bit_length() + 7) // 8 if abs(number) >= WORD else 0


def _numbers_in(row: Iterable[object]) -> int:
    kinds = Counter(type(each) for each in row if type(each) is not int or MOST_TO_COUNT <= abs(each) < WORD)
    return kinds[float] + kinds[complex] + kinds[int]


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


def _own_bytes(kept: Any) -> int:
    """None of a view of other memory: what that belongs to is seen by itself."""
    if isinstance(kept, np.ndarray):
        return kept.nbytes if kept.base is None else 0
    return len(kept) * getattr(kept, "itemsize", 1)
