"""What each exercise of lesson 10 must show: arithmetic of traces, three slow programs, one made fast."""

from __future__ import annotations

from labkit.checks.lesson_10 import (
    breaking_down,
    even_work,
    exposed,
    fast,
    host_waits,
    lateness,
    overlapping,
    utilisation,
)

EXERCISES = [
    exposed.EXERCISE,
    lateness.EXERCISE,
    breaking_down.EXERCISE,
    utilisation.EXERCISE,
    overlapping.EXERCISE,
    host_waits.EXERCISE,
    even_work.EXERCISE,
    fast.EXERCISE,
]
