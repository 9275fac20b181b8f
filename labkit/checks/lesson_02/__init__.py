"""What the exercises of lesson 02 must show: layers over devices, on the host, and over processes.

One file an exercise, with its cases and its properties.
"""

from __future__ import annotations

from labkit.checks.lesson_02 import layerwise, offloading, partitions, remote_stages, step_timing

EXERCISES = [
    partitions.EXERCISE,
    layerwise.EXERCISE,
    step_timing.EXERCISE,
    offloading.EXERCISE,
    remote_stages.EXERCISE,
]
