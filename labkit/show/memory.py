"""Stacked bars of what fills a GPU's memory, drawn as SVG: quick enough to follow a slider, fit for print."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from labkit.show.html import render
from labkit.show.style import GREY, INK, STATES, VERMILION, YELLOW
from labkit.theory.hardware import GPU
from labkit.theory.units import GIB, binary_text, bytes_text

PARTS = {
    **{part: colour for part, colour in STATES.items() if part != "free"},
    "scores": "#8FD6C0",  # attention scores: activations, in a paler green
    "logits": YELLOW,
    "working": GREY,
}
UNITS = {"GiB": GIB, "MiB": 2**20, "KiB": 2**10, "B": 1}
HATCHED = {"gradients": "M0,6 L6,0", "activations": "M3,3 h.1", "working": "M0,0 L6,6"}

_WIDTH, _LEFT, _RIGHT, _ROW, _BAR, _TOP = 800, 150, 165, 44, 26, 46
_TOLD = 72  # width of a total
_LOOK = {
    "width": _WIDTH,
    "left": _LEFT,
    "right": _WIDTH - _RIGHT,
    "top": _TOP,
    "thick": _BAR,
    "colours": PARTS,
    "hatched": HATCHED,
    "ink": INK,
    "grey": GREY,
    "vermilion": VERMILION,
}


class Breakdown(Protocol):
    """Anything that says its bytes part by part, such as a MemoryBreakdown or a measured StepMemory."""

    def as_dict(self) -> Mapping[str, float]:
        """Part -> bytes, in the order they are stacked."""


@dataclass(frozen=True)
class MemoryBars:
    """One stacked bar a row, in GiB or what suits small ones, against the memory of a GPU.

    rows: label -> part -> bytes. gpu: where the line is drawn; None for no line.
    """

    rows: Mapping[str, Mapping[str, float]]
    gpu: GPU | None = None
    title: str = ""

    @property
    def alt(self) -> str:
        """What the figure shows, in words."""
        return "; ".join(f"{label}: {bytes_text(sum(parts.values()))}" for label, parts in self.rows.items())

    def svg(self) -> str:
        """The figure as one SVG element."""
        return self._drawn(title="")

    def _repr_html_(self) -> str:
        return self._drawn(self.title)

    def __repr__(self) -> str:
        return f"[memory: {self.alt}]"

    @property
    def _most(self) -> float:
        totals = [sum(parts.values()) for parts in self.rows.values()]
        return max([*totals, (self.gpu.memory if self.gpu else 0), 1]) * 1.02

    @property
    def _unit(self) -> str:
        return next(unit for unit, size in UNITS.items() if self._most >= size)

    @property
    def _legend(self) -> list[str]:
        """The parts there are: those with a colour, then those without."""
        there = dict.fromkeys(part for parts in self.rows.values() for part in parts if parts[part])
        return [*(part for part in PARTS if part in there), *(part for part in there if part not in PARTS)]

    def _x(self, num_bytes: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * num_bytes / self._most

    def _drawn(self, title: str) -> str:
        limit = self.gpu and {"x": self._x(self.gpu.memory), "label": self.gpu.name}
        return render(
            "memory",
            title=title,
            alt=self.alt,
            legend=self._legend,
            unit=self._unit,
            ticks=list(self._ticks()),
            bars=[self._bar(row, label, parts) for row, (label, parts) in enumerate(self.rows.items())],
            limit=limit,
            bottom=_TOP + _ROW * len(self.rows) + 4,
            **_LOOK,
        )

    def _ticks(self) -> Iterator[dict[str, Any]]:
        size = UNITS[self._unit]
        most = self._most / size
        step = _round_step(most / 6)
        for number in range(int(most / step) + 1):
            yield {"x": self._x(number * step * size), "label": f"{number * step:g}"}

    def _bar(self, row: int, label: str, parts: Mapping[str, float]) -> dict[str, Any]:
        total = sum(parts.values())
        return {
            "label": label,
            "y": _TOP + _ROW * row,
            "pieces": list(self._pieces(parts)),
            "told_at": self._beside(self._x(total)) + 6,
            "fits": self.gpu is None or total <= self.gpu.memory,
            "binary": binary_text(total),
            "decimal": bytes_text(total).split(" (")[0],
        }

    def _beside(self, end: float) -> float:
        """Where what a bar adds up to may begin: behind the GPU's memory, if it would cross that line."""
        line = self._x(self.gpu.memory) if self.gpu else end
        return line if end < line < end + _TOLD else end

    def _pieces(self, parts: Mapping[str, float]) -> Iterator[dict[str, Any]]:
        start = 0.0
        for part, num_bytes in parts.items():
            left, right = self._x(start), self._x(start + num_bytes)
            told = f"{part}: {bytes_text(num_bytes)}"
            yield {"part": part, "x": left, "width": max(right - left, 0), "told": told}
            start += num_bytes


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least `least`."""
    power = 10 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)


def draw_memory(
    rows: Mapping[str, Breakdown | Mapping[str, float]], gpu: GPU | None = None, title: str = ""
) -> MemoryBars:
    """Stacked bars, one a row: label -> bytes by part, or anything with `as_dict()`.

    TypeError for a row that is neither, ValueError for a part that is no number from 0.
    """
    return MemoryBars({label: _plain(label, row) for label, row in rows.items()}, gpu, title)


def _plain(label: str, row: Breakdown | Mapping[str, float]) -> Mapping[str, float]:
    parts = row.as_dict() if hasattr(row, "as_dict") else row
    if not isinstance(parts, Mapping):
        raise TypeError(f'{label}: expected bytes by part, as in {{"weights": 1e9}}, found {row!r}')
    for part, num_bytes in parts.items():
        if not _is_amount(num_bytes):
            raise ValueError(f"{label}: expected the bytes of {part!r}, 0 or more, found {num_bytes!r}")
    return parts


def _is_amount(value: Any) -> bool:
    try:
        return bool(0 <= value < math.inf)
    except TypeError:
        return False
