"""What each exercise of lesson 08 must show: arithmetic, the three stages of ZeRO, a norm, a checkpoint."""

from __future__ import annotations

from labkit.checks.lesson_08.checkpoint import SHARDED_CHECKPOINT
from labkit.checks.lesson_08.formulas import RANK_BYTES, STEP_TRAFFIC
from labkit.checks.lesson_08.gradients import SHARDED_GRADIENTS
from labkit.checks.lesson_08.layout import FLAT_LAYOUT
from labkit.checks.lesson_08.module import FULLY_SHARDED_MODULE
from labkit.checks.lesson_08.norm import GLOBAL_GRAD_NORM
from labkit.checks.lesson_08.optimizer import SHARDED_OPTIMIZER

EXERCISES = [
    RANK_BYTES,
    STEP_TRAFFIC,
    FLAT_LAYOUT,
    SHARDED_OPTIMIZER,
    SHARDED_GRADIENTS,
    FULLY_SHARDED_MODULE,
    GLOBAL_GRAD_NORM,
    SHARDED_CHECKPOINT,
]
