"""What a notebook shows of ranks: tabs made of HTML and CSS alone, readable also where styles are stripped.

Ranks that say the same share a tab. Colours are JupyterLab's own variables, so both themes fit.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence

from labkit.show.html import render

_MOST_LINES = 200
_MOST_CHARACTERS = 20000
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def clean(text: str) -> str:
    """Terminal output as plain text: no colour codes, only the last state of a line that was drawn over."""
    lines = _ANSI.sub("", text).replace("\r\n", "\n").split("\n")
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    note = ""
    if len(lines) > _MOST_LINES:
        note = f"[... {len(lines) - _MOST_LINES} lines above are not shown]\n"
        lines = lines[-_MOST_LINES:]
    short = "\n".join(lines)
    if len(short) > _MOST_CHARACTERS:
        note = "[... the beginning is not shown]\n"
        short = short[-_MOST_CHARACTERS:]
    return note + short


def rank_names(ranks: Sequence[int]) -> str:
    """[0] -> "rank 0"; [0, 1, 2, 5] -> "ranks 0–2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(parts)


def fold(contents: Mapping[int, str]) -> list[tuple[list[int], str]]:
    """Ranks with the same content together, in the order of their first rank."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(contents):
        groups.setdefault(contents[rank], []).append(rank)
    return [(ranks, content) for content, ranks in groups.items()]


def tabs(contents: Mapping[int, str], nodes: Sequence[str] = ()) -> str:
    """HTML of each rank's content (itself HTML), one tab for each different content.

    nodes: the node of each rank, where there are several.
    """
    shown = [{"title": _located(ranks, nodes), "content": content} for ranks, content in fold(contents)]
    return render("tabs", id="labkit-" + uuid.uuid4().hex[:12], tabs=shown)


def _located(ranks: Sequence[int], nodes: Sequence[str]) -> str:
    """'ranks 0–3 on n1'."""
    where = sorted({nodes[rank] for rank in ranks if rank < len(nodes)} - {""})
    return rank_names(ranks) + (f" on {', '.join(where)}" if where else "")


def _pre(text: str) -> str:
    return render("printed", text=clean(text).rstrip()) if text.strip() else ""


def output_html(output: Mapping[int, str], nodes: Sequence[str] = ()) -> str:
    """What ranks printed; "" when none printed anything."""
    contents = {rank: _pre(text) for rank, text in output.items()}
    if not any(contents.values()):
        return ""
    silent = render("printed", text="")
    return tabs({rank: content or silent for rank, content in contents.items()}, nodes)


def progress_html(steps: Sequence[tuple[float, float, str]]) -> str:
    """One bar for the job, at the rank that is furthest behind; "" when no rank reports any."""
    known = [step for step in steps if step[1] > 0]
    if not known:
        return ""
    done, total, label = min(known, key=lambda step: step[0] / step[1])
    return render("progress", done=done, total=total, label=label)


def cell_html(
    output: Mapping[int, str], values: Mapping[int, str], html: Mapping[int, str], nodes: Sequence[str] = ()
) -> str:
    """What a cell printed on its ranks, and the values of its last expression, as text or as HTML."""
    contents = {
        rank: _pre(printed) + (html.get(rank) or _pre(values.get(rank, "")))
        for rank, printed in output.items()
    }
    return tabs(contents, nodes) if any(contents.values()) else ""


def cell_text(
    output: Mapping[int, str],
    displayed: Mapping[int, str],
    values: Mapping[int, str],
    nodes: Sequence[str] = (),
) -> str:
    """The same as text."""
    contents = {
        rank: printed + displayed.get(rank, "") + values.get(rank, "") for rank, printed in output.items()
    }
    return "\n".join(
        f"[{_located(ranks, nodes)}] {line}"
        for ranks, text in fold(contents)
        for line in clean(text).rstrip().split("\n")
    )


def values_html(values: Mapping[int, str], nodes: Sequence[str] = ()) -> str:
    """A value of each rank."""
    return tabs({rank: _pre(value) for rank, value in values.items()}, nodes)


def line_html(text: str) -> str:
    """One line in small print."""
    return render("line", text=text)
