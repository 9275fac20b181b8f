"""The parts of a training that is spread over a grid, as one thing to hand over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.parallel.block import TensorParallelBlock
from labkit.parallel.data import average_gradients
from labkit.parallel.pipeline import one_f_one_b_schedule, run_schedule
from labkit.parallel.streams import RandomStreams
from labkit.parallel.vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy

CUT = (
    *("tokens.weight", "head_weight", "qkv_weight", "qkv_bias", "output_weight"),
    *("up_weight", "up_bias", "down_weight"),
)


@dataclass(frozen=True)
class Parts:
    """What lessons 03, 04 and 07 built.

    block: (whole block, group, streams) -> this rank's part of it, a module with `to_full`.
    embedding: a class with `from_embedding(whole, group)` and `own_rows(table, group)`; also with `to_full`.
    cross_entropy: (own logits, targets, vocabulary, group) -> mean loss.
    streams: (seed, group) -> streams of random numbers, `shared` and `own`.
    schedule: (stage, number of stages, micro-batches) -> a list of actions.
    run_schedule: (PipelinePart, actions, group) -> the loss on the last stage, None elsewhere.
    average_gradients: (module, group), in place.
    """

    block: Callable[..., Any]
    embedding: Any
    cross_entropy: Callable[..., Any]
    streams: Callable[..., Any]
    schedule: Callable[..., Any]
    run_schedule: Callable[..., Any]
    average_gradients: Callable[..., Any]


def library_parts() -> Parts:
    """The library's own."""
    return Parts(
        TensorParallelBlock,
        VocabParallelEmbedding,
        vocab_parallel_cross_entropy,
        RandomStreams,
        one_f_one_b_schedule,
        run_schedule,
        average_gradients,
    )


def is_cut(name: str) -> bool:
    """Whether tensor parallelism gives each rank a block of that parameter; else all ranks have it whole."""
    return name.endswith(CUT)
