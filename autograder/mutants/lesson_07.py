"""Wrong answers to lesson 07: the usual mistakes, the lazy ways out, and answers that pretend.

Ids that start with T name a row of the course's list of known mistakes in tensor parallelism.
"""

from __future__ import annotations

from autograder.mutants.lesson_07_model import OF_BLOCK, OF_BYTES, OF_CLIP, OF_GPT
from autograder.mutants.lesson_07_parts import OF_ATTENTION, OF_EMBEDDING, OF_LOSS
from autograder.mutants.lesson_07_sequence import OF_INITIAL, OF_PAIR, OF_PRODUCTS, OF_STREAMS

MUTANTS = [
    *OF_ATTENTION,
    *OF_EMBEDDING,
    *OF_LOSS,
    *OF_STREAMS,
    *OF_INITIAL,
    *OF_PAIR,
    *OF_PRODUCTS,
    *OF_BLOCK,
    *OF_BYTES,
    *OF_GPT,
    *OF_CLIP,
]
