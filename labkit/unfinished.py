"""Short words in place of tracebacks for cells that ran before their exercise was written.

A cell below an unsolved exercise cannot work, and a page of frames says no more about that than one line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

STUB = re.compile(r"\d\d\.[\w-]+: not written yet")  # what the stub of every exercise raises

_ID = re.compile(r"""["'](\d\d)\.[a-z]""")  # how an exercise's id begins, in a cell


def explain(error: BaseException, cells: Sequence[str]) -> str:
    """What to say of `error` in a notebook that ran `cells` (the last one failed); "" for nothing.

    A stub's error says which exercise to write. A missing name is explained when an earlier cell makes it:
    that cell failed, or stopped before it got there, or another has deleted it since; and when an exercise
    asks for it, whose cell has not been run then.
    """
    if isinstance(error, NotImplementedError) and STUB.fullmatch(str(error)):
        return f"NotImplementedError: {error}. Write this exercise, run its cell, then run this one."
    if not isinstance(error, NameError) or not error.name:
        return ""
    name = re.escape(error.name)
    makes = re.compile(rf"^([\w, ]*\b{name}\b[\w, ]* = |(async )?(def|class) {name}\b)", re.MULTILINE)
    made = max((n for n, cell in enumerate(cells[:-1]) if makes.search(cell)), default=0)
    if not made:
        asked = " or ".join(_asking_for(error.name, cells))
        return f"NameError: {error}. Run the cell of exercise {asked} first." if asked else ""
    deletes = re.compile(rf"^\s*del [^#\n]*\b{name}\b", re.MULTILINE)
    deleted = next((n for n, cell in enumerate(cells) if n >= made and deletes.search(cell)), 0)
    if deleted:
        return (
            f"NameError: {error}. Cell In[{deleted}] deletes it: run cell In[{made}], which makes it, again."
        )
    return f"NameError: {error}. Cell In[{made}] should have made it: get that one to run first."


def _asking_for(name: str, cells: Sequence[str]) -> list[str]:
    """The ids of the exercises that ask for this name: of the lessons that cells speak of, if they do."""
    from labkit.checks import registry  # brings torch, for which other notebooks should not wait

    lessons = {number for cell in cells for number in _ID.findall(cell)} & {*registry.lessons()}
    return [
        exercise.id
        for lesson in sorted(lessons or registry.lessons())
        for exercise in registry.exercises(lesson)
        if name in exercise.names
    ]
