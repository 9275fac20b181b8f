"""What a long run has done so far, so that one that was interrupted goes on from there."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeVar

import msgspec

from autograder.grade.reference import REPOSITORY

FILE = REPOSITORY / "build" / "thorough.jsonl"
Value = TypeVar("Value")


class _Line(msgspec.Struct):
    key: str
    value: msgspec.Raw


class Kept:
    """Values by key in the file at `path`, one a line, each there as soon as it is added."""

    def __init__(self, path: Path = FILE) -> None:
        self.path = path
        lines = path.read_bytes().splitlines() if path.exists() else []
        self._values = {line.key: bytes(line.value) for text in lines if (line := _read(text))}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str, type_: type[Value]) -> Value | None:
        """What was added under a key; None where nothing was, or something of another make."""
        try:
            return msgspec.json.decode(self._values[key], type=type_)
        except (KeyError, msgspec.MsgspecError):
            return None

    def add(self, key: str, value: object) -> None:
        """Write a value down."""
        text = self._values[key] = msgspec.json.encode(value)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(_Line(key, msgspec.Raw(text))) + b"\n")

    def clear(self) -> None:
        """Forget everything: the next run begins anew."""
        self._values = {}
        self.path.unlink(missing_ok=True)


def key_of(*parts: object) -> str:
    """One key for all that a result rests on."""
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()[:24]


def _read(text: bytes) -> _Line | None:
    """A line; None where the run was ended while it wrote."""
    try:
        return msgspec.json.decode(text, type=_Line)
    except msgspec.MsgspecError:
        return None
