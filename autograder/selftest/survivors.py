"""Edits of a reference that lose nothing, each with the sentence that says why that is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import msgspec

from autograder.selftest.wrong_answers import LESSONS

FILE = "survivors.toml"


class Survivor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An edit that may keep every point. exercise, was, becomes: which it is, as the self-test prints it.

    because: why the changed code is right, or why no check can tell.
    """

    exercise: str
    was: str
    becomes: str
    because: str


class SurvivorsError(ValueError):
    """A lesson's file of survivors cannot be read, or has one without a reason; the message names it."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    survivor: list[Survivor] = []


@dataclass(frozen=True)
class Excused:
    """What a lesson's file excuses."""

    survivors: Sequence[Survivor]

    def covers(self, exercise: str, was: str, becomes: str) -> bool:
        """Whether this edit of an exercise may lose nothing."""
        return any((s.exercise, s.was, s.becomes) == (exercise, was, becomes) for s in self.survivors)


@cache
def excused(lesson: str) -> Excused:
    """The survivors of a lesson given by its number or name; none where it has no file of them."""
    path = LESSONS / f"lesson_{lesson[:2]}" / FILE
    if not path.exists():
        return Excused(())
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=_File).survivor
    except (msgspec.MsgspecError, ValueError) as problem:
        raise SurvivorsError(f"{path}: {problem}") from None
    for survivor in found:
        if len(survivor.because.split()) < 4:
            raise SurvivorsError(f"{path}: expected a sentence in `because` for {survivor.was!r}")
    return Excused(found)
