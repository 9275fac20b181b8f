"""What the exercises of lesson 02 must show: layers over devices, on the host, and over processes."""

from __future__ import annotations

from labkit.checks.lesson_02.layerwise import LAYERWISE
from labkit.checks.lesson_02.offloading import OFFLOADED
from labkit.checks.lesson_02.partitions import PARTITION
from labkit.checks.lesson_02.remote_stages import REMOTE
from labkit.checks.lesson_02.step_timing import TIMING

EXERCISES = [PARTITION, TIMING, LAYERWISE, OFFLOADED, REMOTE]
