"""What the exercises of lesson 02 must show: layers over devices, on the host, and over processes."""

from __future__ import annotations

from labkit.checks.layerwise import LAYERWISE
from labkit.checks.offloading import OFFLOADED
from labkit.checks.partitions import PARTITION
from labkit.checks.remote_stages import REMOTE
from labkit.checks.step_timing import TIMING

EXERCISES = [PARTITION, TIMING, LAYERWISE, OFFLOADED, REMOTE]
