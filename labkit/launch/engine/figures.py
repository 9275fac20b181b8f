"""matplotlib's backend on a session's ranks: `plt.show()` shows the figures in the rank's tab."""

from __future__ import annotations

import builtins

from matplotlib.backend_bases import FigureManagerBase as FigureManager
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

from labkit.launch.engine.rich import open_figures

__all__ = ["FigureCanvas", "FigureManager", "show"]


def show(*_: object, **__: object) -> None:
    """What `plt.show()` calls."""
    builtins.display(*open_figures())  # type: ignore[attr-defined]
