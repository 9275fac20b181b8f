"""What is said where this program fails, and no submission."""

from __future__ import annotations

import traceback
from pathlib import Path

LONGEST = 300  # characters of what a fault says


def fault_told(fault: Exception) -> str:
    """What is said of an error of this program, with the line that it comes from."""
    place = traceback.extract_tb(fault.__traceback__)[-1]
    told = f"{type(fault).__name__}: {str(fault)[:LONGEST]}".removesuffix(": ")
    return (
        f"a fault of the grader, please report it: {told} ({Path(place.filename).name}, line {place.lineno})"
    )
