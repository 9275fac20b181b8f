"""What a lesson shows of a real GPU, whatever it runs on itself: measured there, and marked as such."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("measurements")


@dataclass(frozen=True)
class Stretch:
    """A stretch of time one stream of a device was at work, in seconds; for `draw_utilisation`."""

    stream: int  # 0 is the one that computes
    kind: str
    start: float
    end: float
    device: int = 0
    name: str = ""


@dataclass(frozen=True)
class Measured:
    """A measurement. gpu, torch, date: of what, with which version, when.  found: its figures by name, with
    units in the names.
    """

    gpu: str
    torch: str
    date: str
    found: Mapping[str, Any]

    @property
    def about(self) -> str:
        """What a caption says of it."""
        return f"Measured on one {self.gpu}, torch {self.torch}, {self.date}"

    def timeline(self, title: str) -> list[Stretch]:
        """When the GPU's streams were at work."""
        rows = self.found["timelines"][title]
        return [Stretch(stream, kind, start / 1e3, end / 1e3) for stream, kind, start, end in rows]


def measured_on_a_gpu(name: str) -> Measured:
    """The measurement `name`. Raises LookupError, naming those there are."""
    path = RECORDED / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in RECORDED.glob("*.json")))
        raise LookupError(f"expected the name of a measurement ({known}), found {name!r}")
    found = json.loads(path.read_text(encoding="utf-8"))
    gpu, torch, date = (found.pop(key) for key in ("gpu", "torch", "date"))
    return Measured(gpu, torch, date, found)
