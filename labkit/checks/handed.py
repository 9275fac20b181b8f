"""Whether what a check was handed is what the notebook's cells define, which is what it checks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from types import FunctionType

from labkit.checks.exercise import Exercise
from labkit.checks.source.notebook import label_of, names_of_notebook
from labkit.checks.source.submission import Submission
from labkit.launch.names import readable_file

_BY_MAGIC = "<timed exec>"  # the file name that %%time compiles a cell under, whichever it is


def expect_what_is_asked_for(exercise: Exercise, made: Sequence[object]) -> None:
    """TypeError where a name of the exercise's stands for something else, or for nothing, in the notebook."""
    told = f'expected check("{exercise.id}", {", ".join(exercise.names)}), '
    told += f"found {', '.join(map(_named, made)) or 'nothing'} behind the id"
    if len(made) != len(exercise.names):
        raise TypeError(told)
    names = names_of_notebook()
    if names is None:
        return
    known = [names.get(name) for name in exercise.names]
    wrong = [(n, m) for n, m, k in zip(exercise.names, made, known, strict=True) if m is not k]
    if not wrong:
        return
    if {*map(id, made)} == {*map(id, known)}:
        raise TypeError(f"{told}: keep that order")
    name, thing = wrong[0]
    if _named(thing) == name:
        raise TypeError(f"{told}, and not the one that {name} stands for in this notebook: hand over {name}")
    raise TypeError(f"{told}: give it the name {name} in its cell, run that, and hand over {name}")


def about_other_origins(exercise: Exercise, made: Sequence[object], submission: Submission) -> list[str]:
    """What was made by other code than that which is checked: by an older cell, or by none."""
    if names_of_notebook() is None:
        return []
    pairs = zip(exercise.names, made, strict=True)
    return [told for name, thing in pairs if (told := _other_origin(name, thing, submission))]


def _other_origin(name: str, thing: object, submission: Submission) -> str:
    where = [s for s in submission.statements if name in (*s.defines, *s.changes)]
    files = list(_files(name, thing))
    if not where or not files or any(s.imports for s in where):
        return ""
    found, checked = [_cell(file) for file in files], {s.cell for s in where}
    if checked & {*found}:
        return ""
    if found[0]:
        return (
            f"What {name} stands for in this notebook was made by {found[0]}. Checked was {where[-1].cell}, "
            "the last that defines it, as in grading: run it again, and see that it ends without an error"
        )
    return (
        f"What {name} stands for in this notebook was made by code of no cell, such as exec or %run. Checked "
        f"was {where[-1].cell}, as in grading, which reads nothing but cells: write it in a cell"
    )


def _files(name: str, thing: object) -> Iterator[str]:
    """The files that a function, or the methods of a class, were compiled in, as far as that tells anything:
    a function under another name comes from a decorator, and a class may have methods from elsewhere.
    """
    if isinstance(thing, type):
        functions = [inspect.unwrap(getattr(v, "__func__", v)) for v in vars(thing).values() if callable(v)]
        own = [
            f for f in functions if isinstance(f, FunctionType) and f.__qualname__ == f"{name}.{f.__name__}"
        ]
        yield from (f.__code__.co_filename for f in own if _cell(f.__code__.co_filename))
        return
    function = inspect.unwrap(thing) if callable(thing) else None
    if isinstance(function, FunctionType) and function.__name__ == name:
        file = function.__code__.co_filename
        yield from [] if file == _BY_MAGIC else [file]


def _cell(file: str) -> str:
    """What a cell is called whose code was compiled under this file name; "" where it is none."""
    match = re.fullmatch(r"In\[(\d+)\]", readable_file(file))
    return label_of(int(match[1])) if match else ""


def _named(thing: object) -> str:
    """Something that was handed over, by its name where it has one."""
    return str(getattr(thing, "__name__", repr(thing)))[:80]
