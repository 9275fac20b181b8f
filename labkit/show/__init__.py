"""Figures and tables for notebooks. A cell shows what it returns: make the call its last line.

Names are imported when they are first used, so that importing this does not bring matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.show.blocks import draw_matmul_split as draw_matmul_split
    from labkit.show.blocks import draw_parallel_mlp as draw_parallel_mlp
    from labkit.show.breakdown import draw_breakdown as draw_breakdown
    from labkit.show.checkpoints import draw_growth as draw_growth
    from labkit.show.checkpoints import draw_held as draw_held
    from labkit.show.checkpoints import draw_peaks as draw_peaks
    from labkit.show.style import KINDS as KINDS
    from labkit.show.style import STATES as STATES
    from labkit.show.style import Picture as Picture
    from labkit.show.style import new_figure as new_figure
    from labkit.show.table import Table as Table
    from labkit.show.table import prediction as prediction
    from labkit.show.timeline import draw_timeline as draw_timeline
    from labkit.show.traffic import draw_traffic as draw_traffic

_HOMES = {
    "draw_matmul_split": "blocks",
    "draw_parallel_mlp": "blocks",
    "draw_breakdown": "breakdown",
    "draw_growth": "checkpoints",
    "draw_held": "checkpoints",
    "draw_peaks": "checkpoints",
    "KINDS": "style",
    "STATES": "style",
    "Picture": "style",
    "new_figure": "style",
    "Table": "table",
    "prediction": "table",
    "draw_timeline": "timeline",
    "draw_traffic": "traffic",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"labkit.show has no {name!r}; it has {', '.join(sorted(_HOMES))}")
    return getattr(importlib.import_module(f"labkit.show.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
