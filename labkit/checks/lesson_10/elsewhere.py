"""How much of a program's numbers goes where no journal looks: to NumPy, into lists, to another thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.checks.shared.beside import nbytes
from labkit.checks.shared.leaving import METHODS
from labkit.record.journal import flops_of, operands_of
from labkit.record.names import named_as
from labkit.record.threads import InAllThreads, is_followed
from labkit.torch_private import WatchingMode, tree_iter

COMING = ("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack")


class Elsewhere:
    """num_bytes: of the floating-point tensors that left torch, came to it, or were touched in another
    thread.
    """

    def __init__(self) -> None:
        self.num_bytes = 0

    def count(self, touched: object) -> None:
        """Add the tensors in there; whole numbers, such as ids, are no part of a model."""
        tensors = [t for t in tree_iter(touched) if isinstance(t, Tensor) and t.is_floating_point()]
        self.num_bytes += sum(nbytes(tensor) for tensor in tensors)


class _InAnotherThread(WatchingMode):
    """A mode sees its own thread alone: each gets one."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        super().__init__()
        self._elsewhere = elsewhere

    def computed(self, func: Any, inputs: Any, out: Any) -> None:
        """Count it, if it is no call and no view."""
        if func.namespace != "c10d" and not func.is_view:
            self._elsewhere.count((inputs, out))


class _ByBackends(InAllThreads, WatchingMode):
    """Sees products that a backend's thread computes, when it calls what a future is to call. To divide there
    what came, or to copy it, is usual.
    """

    def __init__(self, elsewhere: Elsewhere) -> None:
        super().__init__()
        self._elsewhere, self._own = elsewhere, threading.get_ident()

    def computed(self, func: Any, inputs: Any, out: Any) -> None:
        """Count it, if it is a product in another thread."""
        another = is_followed() and threading.get_ident() != self._own  # autograd's own threads are not
        if another and flops_of(func._schema.name, operands_of(inputs)):
            self._elsewhere.count((inputs, out))


@contextlib.contextmanager
def watched_elsewhere() -> Iterator[Elsewhere]:
    """Counts what goes elsewhere inside the block, in threads that are started there too, and products that
    backends' threads compute.
    """
    elsewhere = Elsewhere()
    with contextlib.ExitStack() as stack:
        for name in METHODS:
            _replace(stack, Tensor, name, _counting_given(getattr(Tensor, name), elsewhere))
        for name in COMING:
            _replace(stack, torch, name, _counting_made(getattr(torch, name), elsewhere))
        _replace(stack, threading.Thread, "run", _watched(threading.Thread.run, elsewhere))
        stack.enter_context(_ByBackends(elsewhere))
        yield elsewhere


def _counting_given(method: Callable[..., Any], elsewhere: Elsewhere) -> Callable[..., Any]:
    def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        elsewhere.count(tensor)
        return method(tensor, *args, **kwargs)

    return counted


def _counting_made(function: Callable[..., Any], elsewhere: Elsewhere) -> Callable[..., Any]:
    def counted(given: Any, *args: Any, **kwargs: Any) -> Any:
        made = function(given, *args, **kwargs)
        if not isinstance(given, Tensor):
            elsewhere.count(made)
        return made

    return counted


def _watched(run: Callable[[threading.Thread], None], elsewhere: Elsewhere) -> Callable[..., None]:
    def watched(thread: threading.Thread) -> None:
        with _InAnotherThread(elsewhere):
            run(thread)

    return watched


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    own = vars(owner)
    stack.callback(setattr, owner, name, own[name]) if name in own else stack.callback(delattr, owner, name)
    setattr(owner, name, named_as(getattr(owner, name), value))
