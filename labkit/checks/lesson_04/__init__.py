"""What the exercises of lesson 04 must show: micro-batches, three schedules, an executor, and the bubble."""

from labkit.checks.lesson_04 import executor, formulas, schedules, splitting

EXERCISES = [
    splitting.EXERCISE,
    schedules.GPIPE,
    schedules.ONE_F_ONE_B,
    schedules.INTERLEAVED,
    formulas.PEAK_IN_FLIGHT,
    formulas.BUBBLE_FRACTION,
    executor.RUN,
]
