"""What each exercise of lesson 07 must show.

Attention, embedding, loss, random streams and the weights drawn from them, sequence parallelism, the block
and the GPT they make, and the norm of its gradient.
"""

from __future__ import annotations

from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Property, no_inputs
from labkit.checks.lesson_07 import cases
from labkit.checks.lesson_07.block import block_on_rank, gpt_on_rank, judge_block, judge_gpt
from labkit.checks.lesson_07.clipping import clip_inputs, clip_on_rank, judge_clip
from labkit.checks.lesson_07.initial import initial_on_rank, judge_initial
from labkit.checks.lesson_07.loss import judge_loss, loss_inputs, loss_on_rank
from labkit.checks.lesson_07.modules import (
    ATTENTION,
    BLOCK,
    EMBEDDING,
    GPT,
    attention_on_rank,
    embedding_on_rank,
    judge_attention,
    judge_embedding,
    with_boundaries,
)
from labkit.checks.lesson_07.properties import (
    ATTENTION_PROPERTIES,
    BLOCK_PROPERTIES,
    BYTES_PROPERTIES,
    CLIP_PROPERTIES,
    EMBEDDING_PROPERTIES,
    GPT_PROPERTIES,
    INITIAL_PROPERTIES,
    LOSS_PROPERTIES,
    PAIR_PROPERTIES,
    PRODUCTS_PROPERTIES,
    STREAMS_PROPERTIES,
)
from labkit.checks.lesson_07.sequence import (
    judge_pair,
    judge_products,
    pair_inputs,
    pair_on_rank,
    products_inputs,
    products_on_rank,
)
from labkit.checks.lesson_07.streams import judge_streams, streams_on_rank
from labkit.checks.lesson_07.trial import Trial, trial_inputs
from labkit.checks.old_form import Exercise
from labkit.checks.shared.formula import formula_exercise, values_case

TORCHS_OWN = (
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.tensor.parallel.loss_parallel",
    "torch.distributed.tensor.distribute_tensor",
    "torch.distributed.tensor.distribute_module",
)
ATTENTION_ID, EMBEDDING_ID = "07.tensor-parallel-attention", "07.vocab-parallel-embedding"
LOSS_ID, STREAMS_ID = "07.vocab-parallel-cross-entropy", "07.random-streams"
INITIAL_ID = "07.initial-weights"
PAIR_ID, PRODUCTS_ID = "07.sequence-parallel-pair", "07.sequence-parallel-linear"
BLOCK_ID, GPT_ID, CLIP_ID = "07.tensor-parallel-block", "07.tensor-parallel-gpt", "07.clip-grad-norm"


def _activation_rows(arguments: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    from labkit.theory.activations import layer_activation_bytes
    from labkit.theory.models import gpt

    rows = []
    for row in arguments:
        config = gpt(1, row["h"], row["a"], max_sequence=row["s"])
        divided = row.get("sequence_parallel", False)
        value = layer_activation_bytes(
            config, row["s"], row["b"], tensor_parallel=row["t"], sequence_parallel=divided
        )
        rows.append((row, value))
    return rows


def bytes_cases(seed: int, shapes: list[dict[str, int]] | None = None, suffix: str = "") -> list[Case]:
    """One case a formula; shapes: s, b, h, a and t, those of the 22B model and odd ones when not given."""
    shapes = shapes or [
        {"s": 2048, "b": 4, "h": 6144, "a": 64, "t": 8},
        {"s": 96, "b": 3, "h": 40, "a": 5, "t": 1},
        {"s": 512, "b": 1, "h": 96, "a": 12, "t": 4},
    ]
    divided = [{**shape, "sequence_parallel": True} for shape in shapes]
    return [
        values_case("tensor-parallel", _activation_rows(shapes), seed, suffix),
        values_case("sequence-parallel", _activation_rows(divided), seed, suffix),
    ]


def _module(
    exercise_id: str,
    title: str,
    name: str,
    trial: Trial,
    properties: tuple[Property, ...],
    *parts: Any,
    builds_on: tuple[str, ...] = (),
) -> Exercise:
    made, on_rank, judge = parts

    def inputs(case: Case, generator: Any) -> dict[str, Any]:
        return with_boundaries(case, trial_inputs(trial)(case, generator))

    return Exercise(
        exercise_id,
        title,
        (name,),
        properties,
        made,
        inputs,
        on_rank,
        judge,
        builds_on=builds_on,
        forbids=TORCHS_OWN,
    )


SEQUENCE = (PAIR_ID, PRODUCTS_ID)
EXERCISES = [
    _module(
        *(ATTENTION_ID, "Heads over ranks", "TensorParallelAttention", ATTENTION, ATTENTION_PROPERTIES),
        *(cases.attention_cases, attention_on_rank, judge_attention),
    ),
    _module(
        *(EMBEDDING_ID, "Rows of the vocabulary over ranks", "VocabParallelEmbedding", EMBEDDING),
        *(EMBEDDING_PROPERTIES, cases.embedding_cases, embedding_on_rank, judge_embedding),
    ),
    Exercise(
        *(LOSS_ID, "A loss without whole logits", ("vocab_parallel_cross_entropy",), LOSS_PROPERTIES),
        *(cases.loss_cases, loss_inputs, loss_on_rank, judge_loss),
        forbids=TORCHS_OWN,
    ),
    Exercise(
        *(STREAMS_ID, "Two streams of random numbers", ("RandomStreams",), STREAMS_PROPERTIES),
        *(cases.streams_cases, no_inputs, streams_on_rank, judge_streams),
    ),
    Exercise(
        *(INITIAL_ID, "Weights that nobody holds whole", ("initial_weight",), INITIAL_PROPERTIES),
        *(cases.initial_cases, no_inputs, initial_on_rank, judge_initial),
        builds_on=(STREAMS_ID,),
    ),
    Exercise(
        PAIR_ID,
        "Gather and scatter the sequence",
        ("GatherSequence", "ReduceScatterSequence"),
        PAIR_PROPERTIES,
        cases.pair_cases,
        pair_inputs,
        pair_on_rank,
        judge_pair,
        forbids=TORCHS_OWN,
    ),
    Exercise(
        PRODUCTS_ID,
        "Two products, tokens divided",
        ("sequence_column_parallel", "sequence_row_parallel"),
        PRODUCTS_PROPERTIES,
        cases.products_cases,
        products_inputs,
        products_on_rank,
        judge_products,
        builds_on=(PAIR_ID,),
        forbids=TORCHS_OWN,
    ),
    _module(
        *(BLOCK_ID, "The block", "TensorParallelBlock", BLOCK, BLOCK_PROPERTIES),
        *(cases.block_cases, block_on_rank, judge_block),
        builds_on=(ATTENTION_ID, STREAMS_ID, *SEQUENCE),
    ),
    formula_exercise(
        *(
            "07.activation-bytes",
            "What a rank keeps",
            "block_activation_bytes",
            BYTES_PROPERTIES,
            bytes_cases,
        ),
        hides=("theory/activations.py",),
    ),
    _module(
        *(GPT_ID, "The whole model", "TensorParallelGPT", GPT, GPT_PROPERTIES),
        *(cases.gpt_cases, gpt_on_rank, judge_gpt),
        builds_on=(ATTENTION_ID, EMBEDDING_ID, LOSS_ID, STREAMS_ID, *SEQUENCE, BLOCK_ID),
    ),
    Exercise(
        *(CLIP_ID, "One norm for cut and whole", ("clip_grad_norm",), CLIP_PROPERTIES),
        *(cases.clip_cases, clip_inputs, clip_on_rank, judge_clip),
        forbids=("torch.nn.utils.clip_grad_norm_",),
    ),
]
