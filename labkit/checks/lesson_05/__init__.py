"""What each exercise of lesson 05 must show: a function run again in backward, and a chain of them."""

from __future__ import annotations

from labkit.checks.lesson_05.formulas import BEST_SEGMENT_COUNT, SAVED_ACTIVATION_BYTES
from labkit.checks.lesson_05.one_call import CHECKPOINT
from labkit.checks.lesson_05.whole_chain import CHECKPOINT_SEQUENTIAL

EXERCISES = [CHECKPOINT, CHECKPOINT_SEQUENTIAL, SAVED_ACTIVATION_BYTES, BEST_SEGMENT_COUNT]
