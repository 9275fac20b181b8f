"""ZeRO to the byte: what one rank holds and sends when units of whole parameters are cut into equal shards.

`labkit.theory.recipes.state_bytes` is the limit of large units: no padding, and nothing gathered. Stages and
traffic: ZeRO (arXiv 1910.02054), sections 5 and 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from labkit.theory.recipes import Recipe

Piece = tuple[int, int, int]  # parameter, first element, behind the last


def shard_sizes(numels: Sequence[int], stage: int, world_size: int) -> list[int]:
    """Elements of one rank's shard of each flat tensor: one tensor for the model up to stage 1, then one a
    unit.
    """
    if stage not in range(4) or world_size < 1:
        raise ValueError(
            f"expected a stage of 0 to 3 on 1 rank or more, got stage {stage}, {world_size} ranks"
        )
    units = [sum(numels)] if stage < 2 else numels
    return [-(-n // world_size) for n in units]


def bytes_of_rank(numels: Sequence[int], recipe: Recipe, stage: int, world_size: int) -> dict[str, int]:
    """Bytes on every rank, padding included: weights, gradients and optimizer at rest, and `working`, what is
    whole at the most crowded moment of backward.

    numels: parameters of each unit, in the order forward uses them.
    """
    shards = shard_sizes(numels, stage, world_size)
    own, flat, whole = sum(shards), sum(shards) * world_size, sum(numels)
    return {
        "weights": (whole, flat, flat, own)[stage] * recipe.weights,
        "gradients": (whole, whole, own, own)[stage] * recipe.gradients,
        "optimizer": (whole, own, own, own)[stage] * recipe.optimizer,
        "working": world_size * _working(shards, recipe, stage),
    }


def _working(shards: Sequence[int], recipe: Recipe, stage: int) -> int:
    """For each rank: a unit's gradient, and in stage 3 its weights and those of the one before."""
    if stage < 2:
        return 0
    fetched = recipe.weights if stage == 3 else 0
    return max(
        (fetched * (before + now) + recipe.gradients * now for before, now in pairwise([0, *shards])),
        default=0,
    )


def numbers_sent(
    numels: Sequence[int], stage: int, world_size: int, micro_batches: int = 1, regather: bool = True
) -> int:
    """Numbers one rank sends in a step over a ring, whose gradients add up over its micro-batches.

    regather: whether stage 3 frees its weights between forward and backward.
    """
    if micro_batches < 1:
        raise ValueError(f"expected 1 micro-batch or more, got {micro_batches}")
    one_pass = (world_size - 1) * sum(shard_sizes(numels, stage, world_size))
    passes = (2, 2, micro_batches + 1, micro_batches * (2 + regather))[stage]
    return passes * one_pass


def pieces_of_ranks(numels: Sequence[int], world_size: int) -> tuple[int, list[list[Piece]]]:
    """The size of a shard, and for each rank what it owns of which parameter, in the order of the flat
    tensor.
    """
    (size,) = shard_sizes(numels, 0, world_size)
    edges = [0]
    for numel in numels:
        edges.append(edges[-1] + numel)
    ranges = [(rank * size, (rank + 1) * size) for rank in range(world_size)]
    return size, [
        [
            (index, max(first, low) - first, min(last, high) - first)
            for index, (first, last) in enumerate(pairwise(edges))
            if max(first, low) < min(last, high)
        ]
        for low, high in ranges
    ]
