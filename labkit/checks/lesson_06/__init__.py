"""What each exercise of lesson 06 must show: f and g, the two linear layers, and the MLP.

One file an exercise, with its cases and its properties.
"""

from __future__ import annotations

from labkit.checks.lesson_06 import column, conjugate, mlp, row

EXERCISES = [
    conjugate.F_EXERCISE,
    conjugate.G_EXERCISE,
    column.EXERCISE,
    row.EXERCISE,
    mlp.EXERCISE,
]
