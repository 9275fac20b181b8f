"""What each exercise of lesson 09 must show: a grid of ranks, its traffic, a training on it, and a choice."""

from __future__ import annotations

from labkit.checks.lesson_09 import choice, crossing, rank_grid, reasons, seconds, training

EXERCISES = [
    rank_grid.EXERCISE,
    crossing.EXERCISE,
    training.EXERCISE,
    seconds.EXERCISE,
    reasons.EXERCISE,
    choice.EXERCISE,
]
