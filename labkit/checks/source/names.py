"""Which names code looks up outside itself: while it runs, and later, when what it defines is called."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType

_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
_STORES = ("STORE_NAME", "STORE_GLOBAL")
_AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<generic")  # executed where they stand


def looked_up(code: CodeType) -> tuple[set[str], set[str]]:
    """The names that a statement's code needs while it runs, and those that its functions need once called.

    Neither parameters nor local variables are among them.
    """
    now: set[str] = set()
    later: set[str] = set()
    pending = [(code, now)]
    while pending:
        part, found = pending.pop()
        found.update(_loaded(part))
        inner = (constant for constant in part.co_consts if isinstance(constant, CodeType))
        pending += [(each, found if _runs_at_once(each) else later) for each in inner]
    return now, later


def _loaded(code: CodeType) -> Iterator[str]:
    """Names looked up before this code itself has set them."""
    own: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _STORES:
            own.add(instruction.argval)
        elif instruction.opname in _LOADS and instruction.argval not in own:
            yield instruction.argval


def _runs_at_once(code: CodeType) -> bool:
    """Whether this is a class's body or a comprehension, and no function."""
    return not code.co_flags & inspect.CO_OPTIMIZED or code.co_name.startswith(_AT_ONCE)
