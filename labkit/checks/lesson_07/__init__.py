"""What each exercise of lesson 07 must show: one file an exercise, with its cases and its properties.

Attention, embedding, loss, random streams and the weights drawn from them, sequence parallelism, the block
and the GPT they make, and the norm of its gradient.
"""

from __future__ import annotations

from labkit.checks.lesson_07 import (
    attention,
    block,
    clipping,
    embedding,
    initial,
    kept_bytes,
    loss,
    pair,
    products,
    streams,
    whole_model,
)

EXERCISES = [
    attention.EXERCISE,
    embedding.EXERCISE,
    loss.EXERCISE,
    streams.EXERCISE,
    initial.EXERCISE,
    pair.EXERCISE,
    products.EXERCISE,
    block.EXERCISE,
    kept_bytes.EXERCISE,
    whole_model.EXERCISE,
    clipping.EXERCISE,
]
