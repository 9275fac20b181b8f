"""Takes answers out of a place student code has written to: by expected names, never through a link, never
too much.

The files are copied to a folder of the grader's own before anything looks into them, so that nothing can
change between a check and a use.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MIB = 2**20
_NAMED = {
    1: "BOOL U8 I8 F8_E4M3 F8_E5M2",
    2: "I16 U16 F16 BF16",
    4: "I32 U32 F32",
    8: "F64 I64 U64 C64",
}
SIZES = {name: size for size, names in _NAMED.items() for name in names.split()}  # bytes an element
LARGEST_HEADER = MIB
MOST_TENSORS = 2000
LARGEST_JSON = MIB
MOST_VALUES = 100_000


class Refused(Exception):
    """A file the ranks left is not what a rank of ours writes."""


def take(folder: Path, names: Iterable[str], target: Path, most_bytes: int) -> dict[str, str]:
    """Copy the regular files `names` out of `folder` into `target`; those that are absent are passed over.

    Returns name -> why for the files that were refused. `folder`'s last part may be the student's doing too.
    OSError where `target` has no room for them.
    """
    refused: dict[str, str] = {}
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return {folder.name: f"the folder of answers cannot be opened: {error.strerror}"}
    left = most_bytes
    try:
        for name in names:
            try:
                data = _read(handle, name, left)
            except FileNotFoundError:
                continue
            except (Refused, OSError) as error:
                refused[name] = str(error)
                continue
            left -= len(data)
            _write(target / name, data)
    finally:
        os.close(handle)
    return refused


def tail(folder: Path, name: str, most_bytes: int) -> str:
    """The last part of a text file the student's code wrote to; empty when there is none to be read."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        with os.fdopen(_open(handle, name), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
            return file.read(most_bytes).decode(errors="replace")
    except (Refused, OSError):
        return ""
    finally:
        os.close(handle)


def check_tensors(data: bytes) -> None:
    """Refused unless `data` is a safetensors file whose header tells the truth about sizes.

    Format: 8 bytes little-endian header length, a JSON object name -> {dtype, shape, data_offsets}, the data.
    """
    if len(data) < 8:
        raise Refused("tensors: shorter than its own header")
    length = int.from_bytes(data[:8], "little")
    if length > min(LARGEST_HEADER, len(data) - 8):
        raise Refused(f"tensors: a header of {length} bytes is declared")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise Refused(f"tensors: the header is not JSON ({type(error).__name__})") from None
    if not isinstance(header, dict) or len(header) > MOST_TENSORS:
        raise Refused(f"tensors: expected an object of at most {MOST_TENSORS} tensors")
    for name, entry in header.items():
        if name != "__metadata__":
            _check_entry(name[:100], entry, len(data) - 8 - length)


def _check_entry(name: str, entry: Any, available: int) -> None:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]}:
            pass
        case _:
            raise Refused(f"tensor {name!r}: dtype, shape and data_offsets expected")
    if dtype not in SIZES or len(shape) > 16 or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise Refused(f"tensor {name!r}: not a dtype and shape that can be read")
    declared = math.prod(shape) * SIZES[dtype]
    if not 0 <= start <= end <= available or end - start != declared:
        raise Refused(f"tensor {name!r}: declares {declared} bytes, has {end - start} of {available}")


def _read(folder: int, name: str, most: int) -> bytes:
    with os.fdopen(_open(folder, name), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise Refused(f"{name}: more than {most} bytes are left to read")
    if name.endswith(".safetensors"):
        check_tensors(data)
    if name.endswith(".json"):
        check_json(data)
    return data


def check_json(data: bytes) -> None:
    """Refused where reading it would take much more memory than it has bytes: `[],[],[]` takes 30 times."""
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if len(data) > LARGEST_JSON or values > MOST_VALUES:
        raise Refused(
            f"an answer of {len(data)} bytes and {values} values; at most {LARGEST_JSON} and {MOST_VALUES} "
            "are read"
        )


def _write(path: Path, data: bytes) -> None:
    """The whole file or none: of one cut short it would be said that a rank had sent it so."""
    try:
        path.write_bytes(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _open(folder: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Refused(f"{name}: not a regular file")
    return handle
