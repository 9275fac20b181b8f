"""Wrong answers a grader must catch, as small changes to the reference solutions. One file a lesson:
`MUTANTS`.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass


class MutantError(ValueError):
    """A mutant does not fit the reference any more; the message names it."""


@dataclass(frozen=True)
class Mutant:
    """One mistake: a text replacement in the reference cell of `exercise`, and the properties it must cost.

    old, new: a text that stands exactly once in the cell and what replaces it, or tuples of several of each.
    breaks: names of properties that must not pass. says: the mistake, in words.
    """

    id: str
    exercise: str
    breaks: tuple[str, ...]
    old: str | tuple[str, ...]
    new: str | tuple[str, ...]
    says: str

    def apply(self, source: str) -> str:
        """The reference cell with the mistake in it. MutantError when a text to replace is not there
        exactly once.
        """
        olds, news = _several(self.old), _several(self.new)
        if len(olds) != len(news) or not self.breaks:
            raise MutantError(f"{self.id}: expected as many texts in new as in old, and a property in breaks")
        for old, new in zip(olds, news, strict=True):
            if source.count(old) != 1:
                found = source.count(old)
                raise MutantError(
                    f"{self.id}: expected {old!r} once in {self.exercise}, found it {found} times"
                )
            source = source.replace(old, new)
        return source


def mutants(lesson: str) -> list[Mutant]:
    """All mutants of a lesson given by its number or name; none where it has no file of them."""
    module = f"autograder.mutants.lesson_{lesson[:2]}"
    if importlib.util.find_spec(module) is None:
        return []
    return list(importlib.import_module(module).MUTANTS)


def _several(texts: str | tuple[str, ...]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else texts
