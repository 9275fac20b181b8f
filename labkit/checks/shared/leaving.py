"""How many numbers of tensors go where no operation of torch is seen: into lists, to NumPy, into bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

METHODS = ("numpy", "tolist", "__dlpack__", "apply_", "map_", "map2_")  # numpy.asarray comes by the first
ALONE = ("item", "__float__", "__int__", "__index__", "__complex__")  # one number at a time
PICKLED = "__reduce_ex__"  # by this torch.save and pickle take a tensor apart
BYTES = ("data_ptr", "untyped_storage", PICKLED)  # by these files are written
READ = ("tolist", "__getitem__", "__reduce__")  # what gives away a storage's bytes
SETTINGS = 256  # bytes that may leave as sizes, seeds and settings do
PLACES = 4096  # and as numbers of ranks, by which some lay out a grid
FEWER_RANKS = 1024  # than weights are, read as whole numbers of as many bytes


class Leaving:
    """numbers, num_bytes: of the tensors that were taken apart; place_bytes: of those that are ranks."""

    def __init__(self) -> None:
        self.numbers = self.num_bytes = self.place_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """What a part may hold in some form that only it knows; none where few bytes left."""
        kept = self.num_bytes - (self.place_bytes if self.place_bytes <= PLACES else 0)
        return kept if kept > SETTINGS else 0

    def counting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, which adds what its tensor has."""

        def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.numbers += tensor.numel()
            num_bytes = tensor.numel() * tensor.element_size()
            self.num_bytes += num_bytes
            self.place_bytes += num_bytes if _are_ranks(tensor) else 0
            return method(tensor, *args, **kwargs)

        return counted

    def counting_read(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, which adds what it reads of a storage."""

        def counted(storage: Any, *where: Any) -> Any:
            found = method(storage, *where)
            self.num_bytes += 1 if isinstance(found, int) else storage.nbytes()
            return found

        return counted


def _are_ranks(tensor: Tensor) -> bool:
    whole = tensor.dtype in (torch.int32, torch.int64)
    return whole and bool(((tensor >= 0) & (tensor < FEWER_RANKS)).all())


@contextlib.contextmanager
def numbers_leaving() -> Iterator[Leaving]:
    """Counts inside the block, whatever gives numbers away and whatever could."""
    leaving = Leaving()
    with contextlib.ExitStack() as stack:
        _count_given(stack, leaving, (*METHODS, *BYTES))
        yield leaving


@contextlib.contextmanager
def numbers_given() -> Iterator[Leaving]:
    """Counts inside the block what gives numbers away. Where memory lies may be asked: copying a module
    does.
    """
    leaving = Leaving()
    with contextlib.ExitStack() as stack:
        _count_given(stack, leaving, (*METHODS, *ALONE, PICKLED))
        for name in READ:
            read = leaving.counting_read(getattr(torch.UntypedStorage, name))
            stack.enter_context(patch.object(torch.UntypedStorage, name, read))
        yield leaving


def _count_given(stack: contextlib.ExitStack, leaving: Leaving, names: tuple[str, ...]) -> None:
    for name in names:
        stack.enter_context(patch.object(Tensor, name, leaving.counting(getattr(Tensor, name))))
