"""What a cell did on the ranks of a session."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from labkit.launch import render
from labkit.launch.handover.request import check_timeout


class CellOptions(TypedDict, total=False):
    """How a cell is run: see `Cell`."""

    ranks: Sequence[int] | None
    timeout: float
    names: Mapping[str, Any] | None
    push: Collection[str]
    file: str
    reload: bool


@dataclass(frozen=True)
class Cell:
    """A cell for ranks.

    ranks: None for all. timeout: seconds until it is ended. names: a namespace, such as the notebook's, from
    which functions, classes and values that the source uses are sent along. push: names of it that are sent
    in any case, over what the ranks have. file: what tracebacks call the cell. reload: import the person's
    own modules again whose files have changed.
    """

    source: str
    ranks: Sequence[int] | None = None
    timeout: float = 60
    names: Mapping[str, Any] | None = None
    push: Collection[str] = ()
    file: str = "<cell>"
    reload: bool = False

    def __post_init__(self) -> None:
        """ValueError for a timeout that is none, TypeError for a source that is no text. A SyntaxError is the
        notebook's own, and reaches no rank.
        """
        check_timeout(self.timeout)
        if not isinstance(self.source, str):
            raise TypeError(
                f"a cell is source text, not {type(self.source).__name__}; a function is run on ranks by"
                " labkit.launch(function, ranks=...)"
            )
        compile(self.source, self.file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@dataclass
class CellResult:
    """What a cell did on the ranks it ran on.

    values, html: the last expression of each rank, as text and (when it has one) as HTML; "" where there was
    none. output: what each rank printed. Keys are ranks. nodes: each rank's node, where there are several.
    displayed: as text, what each rank showed with `display` or as a figure; `html` has it, too.
    notes: sentences on the cell, such as on what the ranks keep.
    """

    ranks: tuple[int, ...]
    output: dict[int, str] = field(default_factory=dict)
    values: dict[int, str] = field(default_factory=dict)
    html: dict[int, str] = field(default_factory=dict)
    wall_seconds: float = 0.0
    nodes: Sequence[str] = ()
    notes: Sequence[str] = ()
    displayed: dict[int, str] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        notes = "".join(render.line_html(note) for note in self.notes)
        return notes + render.cell_html(self.output, self.values, self.html, self.nodes)

    def __repr__(self) -> str:
        text = render.cell_text(self.output, self.displayed, self.values, self.nodes)
        return "\n".join([*self.notes, *([text] if text else [])])


CellWatcher = Callable[[CellResult], None]
