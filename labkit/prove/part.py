"""What a part is, and the parts that everybody can run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One question of a proof.

    command: what runs it; it gets the path of the file for its results as its last argument.
    seconds: its deadline.  gpu: whether there is nothing to ask where no GPU is.
    """

    name: str
    asks: str
    command: Sequence[str]
    seconds: float
    gpu: bool = False


def module_part(name: str, asks: str, seconds: float, gpu: bool = False, module: str = "") -> Part:
    """A part that is a module with `main(results)`, labkit.prove.NAME unless another is given."""
    command = (sys.executable, "-m", "labkit.prove.child", name, module or f"labkit.prove.{name}")
    return Part(name, asks, command, seconds, gpu)


PARTS = (
    module_part("machine", "which devices, driver and versions are here", 60),
    module_part("ranks", "do ranks start, each on its GPU, and share one where they must", 120),
    module_part("collectives", "which collectives work, on which backend and device", 180),
    module_part("bandwidth", "how fast products, copies and transfers to the host are", 90, gpu=True),
    module_part("links", "how fast all-reduces are by size, against alpha and beta fitted to them", 120),
    module_part("memory", "whether a training step takes the memory that the formulas say", 150, gpu=True),
)
