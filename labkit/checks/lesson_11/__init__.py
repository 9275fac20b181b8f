"""What each exercise of lesson 11 must show: partial attentions, blocks, a fair cut, the ring, heads
given for tokens, and a model that trains on divided sequences.

One file an exercise; the ring's forward and backward share one.
"""

from __future__ import annotations

from labkit.checks.lesson_11 import (
    backward,
    blockwise,
    heads,
    losses,
    merging,
    ring,
    sent,
    tokens,
    whole_model,
)

EXERCISES = [
    merging.EXERCISE,
    blockwise.EXERCISE,
    backward.EXERCISE,
    tokens.EXERCISE,
    ring.RING_FORWARD,
    ring.RING_ATTENTION,
    heads.EXERCISE,
    sent.EXERCISE,
    losses.EXERCISE,
    whole_model.EXERCISE,
]
