"""An exception of a rank as plain data, with what led to it, for the person who wrote the code."""

from __future__ import annotations

import errno
import linecache
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from labkit.record.lines import is_library_file

_LONGEST_MESSAGE = 8000  # characters
_MOST_FRAMES = 20
_MOST_RELATED = 8
_FRAMES_WITH_VALUES = 3


Values = Callable[[FrameType], Sequence[tuple[str, str]]]


def describe_error(error: BaseException, values: Values = lambda _: ()) -> dict[str, Any]:
    """Type, message, the user's own frames, notes, what kind of failure it is, and the exceptions behind it.

    values: gives a frame's variables, which the last frames then have. related: each with `how` it belongs
    to this one ("caused by", "while handling", "part 2 of 3"). Of an exception that raises another where it
    is looked at, or for which there is no memory: type, message, and a note of why there is no more.
    """
    try:
        return _whole(error, values)
    except Exception as own:
        note = f"(where it came from cannot be had: {type(own).__name__})"
        alone = {
            "type": type(error).__name__,
            "message": _text(_message(error)),
            "frames": [],
            "notes": [note],
        }
        return {**alone, "kind": _kind(error), "related": []}


def _whole(error: BaseException, values: Values) -> dict[str, Any]:
    related: list[dict[str, Any]] = []
    for how, other in _related(error, {id(error)}):
        if len(related) == _MOST_RELATED:
            break
        related.append({"how": how, **_described(other)})
    return {**_described(error, values), "kind": _kind(error), "related": related}


def _described(error: BaseException, values: Values = lambda _: ()) -> dict[str, Any]:
    notes = getattr(error, "__notes__", ())
    told = [note for note in notes if isinstance(note, str)] if isinstance(notes, (list, tuple)) else []
    return {
        "type": type(error).__name__,
        "message": _text(_message(error)),
        "frames": _frames(error, values),
        "notes": [_text(note) for note in told[:_MOST_RELATED]],
    }


def _text(text: str) -> str:
    """As much of it as is shown, without halves of characters, which no notebook can be sent."""
    return text[:_LONGEST_MESSAGE].encode(errors="backslashreplace").decode()


def _related(error: BaseException, seen: set[int]) -> Iterator[tuple[str, BaseException]]:
    """The parts of a group, then causes and contexts, and theirs; each exception once."""
    near: list[tuple[str, BaseException]] = []
    if isinstance(error, BaseExceptionGroup):
        count = len(error.exceptions)
        near += [(f"part {number} of {count}", part) for number, part in enumerate(error.exceptions, 1)]
    if error.__cause__ is not None:
        near.append(("caused by", error.__cause__))
    elif error.__context__ is not None and not error.__suppress_context__:
        near.append(("while handling", error.__context__))
    for how, other in near:
        if id(other) not in seen:
            seen.add(id(other))
            yield how, other
            yield from _related(other, seen)


def _frames(error: BaseException, values: Values) -> list[dict[str, Any]]:
    own, frames = [], []
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if not is_library_file(code.co_filename):
            source = linecache.getline(code.co_filename, line).strip()
            own.append(frame)
            frames.append(
                {"file": code.co_filename, "line": line, "function": code.co_name, "source": source}
            )
    for frame, described in list(zip(own, frames, strict=True))[-_FRAMES_WITH_VALUES:]:
        described["values"] = list(values(frame))
    return frames[-_MOST_FRAMES:]


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the code called sys.exit({error.code!r}) before the function returned"
    try:
        return str(error)
    except Exception as own:
        return f"(its text cannot be had: __str__ raised {type(own).__name__})"


def _kind(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in _message(error):
        return "out_of_memory"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "disk_full"
    return "error"
