"""What each exercise of lesson 11 must show: partial attentions, blocks, a fair cut, the ring, heads
given for tokens, and a model that trains on divided sequences.

One file an exercise.
"""

from __future__ import annotations

from labkit.checks.lesson_11 import (
    backward,
    blockwise,
    heads,
    losses,
    merging,
    ring_attention,
    ring_forward,
    sent,
    tokens,
    whole_model,
)

EXERCISES = [
    merging.EXERCISE,
    blockwise.EXERCISE,
    backward.EXERCISE,
    tokens.EXERCISE,
    ring_forward.EXERCISE,
    ring_attention.EXERCISE,
    heads.EXERCISE,
    sent.EXERCISE,
    losses.EXERCISE,
    whole_model.EXERCISE,
]
