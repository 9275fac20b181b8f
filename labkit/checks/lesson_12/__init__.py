"""What each exercise of lesson 12 must show: tokens to experts, and experts over ranks.

One file an exercise.
"""

from __future__ import annotations

from labkit.checks.lesson_12 import (
    arithmetic,
    balance,
    capacity,
    clipping,
    exchange,
    permuting,
    reducing,
    routing,
    spread,
)

EXERCISES = [
    routing.EXERCISE,
    permuting.EXERCISE,
    exchange.EXERCISE,
    spread.EXERCISE,
    balance.EXERCISE,
    capacity.EXERCISE,
    arithmetic.EXERCISE,
    reducing.EXERCISE,
    clipping.EXERCISE,
]
