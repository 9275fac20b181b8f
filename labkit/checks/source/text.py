"""Text that somebody else wrote, split and shown as what it is."""

from __future__ import annotations

import re

_LINE_END = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")
_KEPT = "\n\t"


def python_lines(source: str) -> list[str]:
    """Source text as Python numbers its lines, ends included.

    Only \\n, \\r and \\r\\n end a line; `str.splitlines` also takes a form feed or U+2028 for an end.
    """
    return [line for line in _LINE_END.split(source) if line]


def visible(text: str) -> str:
    """The text with escapes in place of what a terminal would obey; line ends and tabs stay."""
    return "".join(c if c.isprintable() or c in _KEPT else repr(c)[1:-1] for c in text)
