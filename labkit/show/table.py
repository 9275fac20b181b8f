"""Small tables: a prediction beside its measurement, ours beside theirs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.show.html import render

_NO_GUESS = "no guess yet: write one above"
_COVERED = "guess first, or look"


@dataclass(frozen=True)
class _Covered:
    """What a reader sees when they ask for it: a line to unfold in a notebook, `word` alone elsewhere."""

    text: str
    word: str = _COVERED

    def __str__(self) -> str:
        return self.word


@dataclass(frozen=True)
class Table:
    """Rows under a header, shown as HTML in a notebook and as text elsewhere.

    `...` is a guess not made yet; what follows it in its row is covered.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"expected {len(self.header)} values in each row, found {len(row)}: {row}")

    def _repr_html_(self) -> str:
        rows = [_shown(row) for row in self.rows]
        columns = range(1, len(self.header))  # the first names the row
        quantities = [False, *(_are_quantities([row[column] for row in rows]) for column in columns)]
        return render("table", caption=self.caption, header=self.header, rows=rows, quantities=quantities)

    def __repr__(self) -> str:
        lines = [list(map(str, self.header)), *(list(map(str, _shown(row))) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        padded = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )
        return "\n".join([self.caption, *padded] if self.caption else padded)


def prediction(question: str, guess: Any, found: Any, by: str = "measured") -> Table:
    """What you guessed beside what was found, `by` measuring or computing. `...` is a guess not made yet."""
    return Table(["", "your guess", by], [[question, guess, found]])


def _shown(row: Sequence[Any]) -> list[str | _Covered]:
    shown: list[str | _Covered] = []
    for value in row:
        text = _text(value)
        shown.append(_Covered(text) if text and _NO_GUESS in shown else text)
    return shown


def _are_quantities(column: Sequence[str | _Covered]) -> bool:
    """Whether all that is there is like "1.50 GiB" or "3"; a guess may be missing."""
    texts = [shown.text if isinstance(shown, _Covered) else shown for shown in column]
    there = [text for text in texts if text not in ("", _NO_GUESS)]
    return bool(there) and all(re.match(r"[-+]?[\d.,]+( ?\S+)?$", text) for text in there)


def _text(value: Any) -> str:
    if value is ...:  # a prediction cell that was not filled in
        return _NO_GUESS
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.4g}"
    return str(value)
