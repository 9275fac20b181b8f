"""Small tables: a prediction beside its measurement, ours beside theirs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

CSS = """
.labkit-table.labkit-table {border-collapse: collapse; font-size: 90%; margin: .4em 0}
.labkit-table.labkit-table th, .labkit-table.labkit-table td {text-align: left; vertical-align: top;
  padding: .3em .9em; white-space: normal; border-top: 1px solid rgba(128,128,128,.35)}
.labkit-table.labkit-table .number {text-align: right; font-variant-numeric: tabular-nums}
.labkit-table caption {text-align: left; font-weight: 600; padding: .3em .9em}
"""


@dataclass(frozen=True)
class Table:
    """Rows under a header, shown as HTML in a notebook and as text elsewhere."""

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"expected {len(self.header)} values in each row, found {len(row)}: {row}")

    def _repr_html_(self) -> str:
        texts = [[_text(value) for value in row] for row in self.rows]
        columns = range(1, len(self.header))  # the first names the row
        marks = ["", *(_mark([row[column] for row in texts]) for column in columns)]
        head = _cells("th", map(str, self.header), marks)
        body = "".join(f"<tr>{_cells('td', row, marks)}</tr>" for row in texts)
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        return (
            f'<style>{CSS}</style><table class="labkit-table">{caption}'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def __repr__(self) -> str:
        lines = [list(map(str, self.header)), *([_text(value) for value in row] for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        padded = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )
        return "\n".join([self.caption, *padded] if self.caption else padded)


def prediction(question: str, guess: Any, found: Any, by: str = "measured") -> Table:
    """What you guessed beside what was found, `by` measuring or computing. `...` is a guess not made yet."""
    return Table(["", "your guess", by], [[question, guess, found]])


def _cells(tag: str, texts: Iterable[str], marks: Iterable[str]) -> str:
    return "".join(f"<{tag}{mark}>{escape(text)}</{tag}>" for text, mark in zip(texts, marks, strict=True))


def _mark(column: Sequence[str]) -> str:
    """Columns of quantities ("1.50 GiB") line up on the right, words on the left."""
    quantities = column and all(re.match(r"[-+]?[\d.,]+( ?\S+)?$", text) for text in column)
    return ' class="number"' if quantities else ""


def _text(value: Any) -> str:
    if value is ...:  # a prediction cell that was not filled in
        return "no guess yet: write one above"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
