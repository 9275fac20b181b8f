"""What a cell did on the ranks of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from labkit.launch import render


@dataclass
class CellResult:
    """What a cell did on the ranks it ran on.

    values, html: the last expression of each rank, as text and (when it has one) as HTML; "" where there was
    none. output: what each rank printed. Keys are ranks. nodes: each rank's node, where there are several.
    """

    ranks: tuple[int, ...]
    output: dict[int, str] = field(default_factory=dict)
    values: dict[int, str] = field(default_factory=dict)
    html: dict[int, str] = field(default_factory=dict)
    wall_seconds: float = 0.0
    nodes: Sequence[str] = ()

    def _repr_html_(self) -> str:
        return render.cell_html(self.output, self.values, self.html, self.nodes)

    def __repr__(self) -> str:
        return render.cell_text(self.output, self.values, self.nodes)


CellWatcher = Callable[[CellResult], None]
