"""Modes that see what is computed in every thread: torch tells a mode of the thread that opened it alone."""

from __future__ import annotations

import _thread
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from labkit.torch_private import TorchDispatchMode, modes_of_thread
from labkit.torch_private_distributed import FUTURE

# What starts a thread, in any release of Python; the first argument is what runs in it.
_STARTS = {
    _thread: ("start_new_thread", "start_new", "start_joinable_thread"),
    threading: ("_start_new_thread", "_start_joinable_thread"),
}
_CALLED_LATER = ("then", "add_done_callback")  # of a future: by a backend's thread, when a call is over
_open: list[tuple[int, TorchDispatchMode]] = []  # by which thread, and which mode
_this_thread = threading.local()


class InAllThreads(TorchDispatchMode):
    """A mode that, while it is open, also sees what other threads compute, where `follow_threads` went before
    these and what futures are to call.
    """

    def __enter__(self) -> Self:
        _open.append((threading.get_ident(), self))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _open.remove((threading.get_ident(), self))


@functools.cache
def follow_threads() -> None:
    """From now on, have every `InAllThreads` that is open see the threads of this process that are started,
    and what its futures call. For good: a thread may be started long before a mode is opened.
    """
    for module, names in _STARTS.items():
        for name in names:
            if hasattr(module, name):
                setattr(module, name, _passing_on_seen(getattr(module, name)))
    for name in _CALLED_LATER:
        setattr(FUTURE, name, _calling_seen(getattr(FUTURE, name)))


def is_followed() -> bool:
    """Whether what runs is a thread that was started since `follow_threads`, or called by a future."""
    return getattr(_this_thread, "is_seen", False)


def _passing_on_seen(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def starting(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return start(_seen(function), *args, **kwargs)

    return starting


def _calling_seen(method: Callable[..., Any]) -> Callable[..., Any]:
    def called(future: Any, callback: Callable[..., Any]) -> Any:
        return method(future, _seen(callback))

    return called


def _seen(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if is_followed():  # a thread that calls what a future is to call
            return function(*args, **kwargs)
        _this_thread.is_seen = True
        try:
            with modes_of_thread([_Elsewhere()]):
                return function(*args, **kwargs)
        finally:
            _this_thread.is_seen = False

    return run


class _Elsewhere(TorchDispatchMode):
    """Has each operation of its thread seen by the modes that other threads have open at that moment."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see WatchingMode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        here = threading.get_ident()
        with modes_of_thread([mode for thread, mode in _open if thread != here]):
            return func(*args, **(kwargs or {}))
