"""What a notebook shows of ranks: tabs made of HTML and CSS alone, readable also where styles are stripped.

Ranks that say the same share a tab. Colours are JupyterLab's own variables, so both themes fit.
"""

from __future__ import annotations

import html
import re
import uuid
from collections.abc import Mapping, Sequence

_MOST_LINES = 200
_MOST_CHARACTERS = 20000
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STYLE = """
#{id} {{ font-family: var(--jp-ui-font-family, system-ui, sans-serif); font-size: 13px; }}
#{id} > input {{ position: absolute; opacity: 0; pointer-events: none; }}
#{id} > label {{ display: inline-block; padding: 2px 10px; margin: 0 2px -1px 0; cursor: pointer;
  border: 1px solid var(--jp-border-color2, #bbb); border-radius: 3px 3px 0 0;
  color: var(--jp-ui-font-color2, #666); background: var(--jp-layout-color2, #eee); }}
#{id} > section {{ display: none; border: 1px solid var(--jp-border-color2, #bbb); padding: 4px 8px;
  overflow-x: auto; }}
#{id} > section > b {{ display: none; }}
#{id} pre {{ margin: 0; white-space: pre-wrap; font-size: 12px; color: var(--jp-content-font-color1, inherit);
  background: transparent; font-family: var(--jp-code-font-family, monospace); }}
#{id} > input:focus-visible + label {{ outline: 2px solid var(--jp-brand-color1, #1976d2); }}
{rules}
@media print {{ #{id} > section {{ display: block; }} #{id} > section > b {{ display: block; }}
  #{id} > label {{ display: none; }} }}
"""
_RULE = """#{id}-{n}:checked ~ #{id}-{n}-pane {{ display: block; }}
#{id}-{n}:checked + label {{ color: var(--jp-ui-font-color0, #000); background: var(--jp-layout-color1, #fff);
  border-bottom-color: var(--jp-layout-color1, #fff); font-weight: 600; }}"""


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
    """[0] -> "rank 0"; [0, 1, 2, 5] -> "ranks 0-2, 5"."""
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
    groups = fold(contents)
    name = "labkit-" + uuid.uuid4().hex[:12]
    parts = [f'<div id="{name}">']
    rules = "\n".join(_RULE.format(id=name, n=n) for n in range(len(groups)))
    parts.append(f"<style>{_STYLE.format(id=name, rules=rules)}</style>")
    for n, (ranks, _) in enumerate(groups):
        checked = " checked" if n == 0 else ""
        parts.append(f'<input type="radio" name="{name}" id="{name}-{n}"{checked}>')
        parts.append(f'<label for="{name}-{n}">{html.escape(_located(ranks, nodes))}</label>')
    for n, (ranks, content) in enumerate(groups):
        title = html.escape(_located(ranks, nodes))
        parts.append(f'<section id="{name}-{n}-pane"><b>{title}</b>{content}</section>')
    return "".join([*parts, "</div>"])


def _located(ranks: Sequence[int], nodes: Sequence[str]) -> str:
    """'ranks 0–3 on n1'."""
    where = sorted({nodes[rank] for rank in ranks if rank < len(nodes)} - {""})
    return rank_names(ranks) + (f" on {', '.join(where)}" if where else "")


def _pre(text: str) -> str:
    return f"<pre>{html.escape(clean(text).rstrip())}</pre>" if text.strip() else ""


def output_html(output: Mapping[int, str], nodes: Sequence[str] = ()) -> str:
    """What ranks printed; "" when none printed anything."""
    contents = {rank: _pre(text) for rank, text in output.items()}
    if not any(contents.values()):
        return ""
    silent = "<pre><i>nothing printed</i></pre>"
    return tabs({rank: content or silent for rank, content in contents.items()}, nodes)


def progress_html(steps: Sequence[tuple[float, float, str]]) -> str:
    """One bar for the job, at the rank that is furthest behind; "" when no rank reports any."""
    known = [step for step in steps if step[1] > 0]
    if not known:
        return ""
    done, total, label = min(known, key=lambda step: step[0] / step[1])
    share = 100 * done / total
    return (
        '<div style="display:flex;align-items:center;gap:8px;font-size:12px;margin:2px 0">'
        '<div style="width:220px;height:8px;border:1px solid var(--jp-border-color2,#bbb);border-radius:4px">'
        f'<div style="width:{share:.0f}%;height:8px;background:var(--jp-brand-color1,#1976d2)">'
        f"</div></div><span>{html.escape(label)} {done:g} / {total:g}</span></div>"
    )


def cell_html(
    output: Mapping[int, str], values: Mapping[int, str], html: Mapping[int, str], nodes: Sequence[str] = ()
) -> str:
    """What a cell printed on its ranks, and the values of its last expression, as text or as HTML."""
    contents = {
        rank: _pre(printed) + (html.get(rank) or _pre(values.get(rank, "")))
        for rank, printed in output.items()
    }
    return tabs(contents, nodes) if any(contents.values()) else ""


def cell_text(output: Mapping[int, str], values: Mapping[int, str], nodes: Sequence[str] = ()) -> str:
    """The same as text."""
    contents = {rank: printed + values.get(rank, "") for rank, printed in output.items()}
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
    style = "font-size:12px;color:var(--jp-ui-font-color2,#666);margin:2px 0"
    return f'<div style="{style}">{html.escape(text)}</div>'
