"""Small files whose room on the disk is taken beforehand, so that a full disk can still be reported."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

RESERVED_BYTES = 64 << 10
_LONGEST = (sys.maxsize, 2000, 500, 100)  # characters of a text, elements of a list
_LEAST = 20  # what verdicts and phases are told by is shorter


def reserve(path: Path) -> None:
    """Create the file with room for `RESERVED_BYTES`; OSError when the disk has none."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, RESERVED_BYTES)
    finally:
        os.close(descriptor)


def write_reserved(path: Path, data: object) -> None:
    """Replace the file's content by `data`, plain values or a dataclass of them, as JSON, in place.

    On a full disk its texts and lists are cut until there is room for them; OSError when there is none.
    """
    plain = msgspec.to_builtins(data, str_keys=True, enc_hook=str)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        for most in _LONGEST:
            with contextlib.suppress(OSError):
                _write(descriptor, _cut(plain, most))
                return
        _write(descriptor, _cut(plain, _LEAST))
    finally:
        os.close(descriptor)


def _write(descriptor: int, plain: object) -> None:
    raw = json.dumps(plain).encode()  # json alone takes text that is no UTF-8, such as names of files
    done = 0
    while done < len(raw):  # on a disk that is almost full a part may be written before there is an error
        done += os.pwrite(descriptor, raw[done:], done)
    os.ftruncate(descriptor, len(raw))


def _cut(plain: Any, most: int) -> Any:
    """The same with no text and no list longer than `most`."""
    if isinstance(plain, dict):
        return {key: _cut(value, most) for key, value in plain.items()}
    if isinstance(plain, (list, tuple)):
        return [_cut(value, most) for value in plain[:most]]
    return plain[:most] if isinstance(plain, str) else plain


def clear_reserved(path: Path) -> None:
    """Make the file say nothing again, with its room still taken."""
    os.truncate(path, 0)
    reserve(path)


def read_reserved(path: Path) -> dict[str, Any] | None:
    """What was written; None when nothing (whole) was."""
    try:
        found = json.loads(path.read_bytes().rstrip(b"\0") or b"null")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
