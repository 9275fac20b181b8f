"""Small files whose room on the disk is taken beforehand, so that a full disk can still be reported."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

RESERVED_BYTES = 64 << 10


def reserve(path: Path) -> None:
    """Create the file with room for `RESERVED_BYTES`; OSError when the disk has none."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, RESERVED_BYTES)
    finally:
        os.close(descriptor)


def write_reserved(path: Path, data: object) -> None:
    """Replace the file's content by `data`, plain values or a dataclass of them, as JSON, in place."""
    plain = msgspec.to_builtins(data, str_keys=True, enc_hook=str)
    raw = json.dumps(plain).encode()  # json alone takes text that is no UTF-8, such as names of files
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, raw, 0)
        os.ftruncate(descriptor, len(raw))
    finally:
        os.close(descriptor)


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
