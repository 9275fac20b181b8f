"""Where ranks stand in a grid, and what its axes send between nodes. Taken away where lesson 09 is graded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, permutations, product

from labkit.theory.models import ModelConfig
from labkit.theory.parameters import count_parameters

Sizes = Mapping[str, int]


def coordinates_of(rank: int, sizes: Sizes, order: Sequence[str]) -> dict[str, int]:
    """The place of a rank along each axis. order: outermost first, the last axis counts fastest."""
    found = {}
    for axis in reversed(order):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def rank_of(coordinates: Mapping[str, int], sizes: Sizes, order: Sequence[str]) -> int:
    """The rank at a place."""
    rank = 0
    for axis in order:
        rank = rank * sizes[axis] + coordinates[axis]
    return rank


def groups_along(axis: str, sizes: Sizes, order: Sequence[str]) -> list[list[int]]:
    """The ranks of each group along an axis, in the axis's own order."""
    others = [a for a in order if a != axis]
    return [
        [rank_of(dict(zip(others, place, strict=True)) | {axis: i}, sizes, order) for i in range(sizes[axis])]
        for place in product(*(range(sizes[a]) for a in others))
    ]


def sent_by_axis(
    model: ModelConfig, sizes: Sizes, batch: int, sequence: int, micro_batch: int
) -> dict[str, float]:
    """Bytes that one rank passes to the next along each axis in one step, in 16 bits (SC21, section 3.2).

    tp, dp: over a ring. pp: to the next stage, and as much comes back. Layers and parameters are counted as
    if they divided evenly.
    """
    d, p, t = (sizes[axis] for axis in ("dp", "pp", "tp"))
    micro_batches = batch / (d * micro_batch)
    activation = 2 * micro_batch * sequence * model.hidden
    share = count_parameters(model).total / (t * p)
    return {
        "tp": micro_batches * model.num_layers / p * 4 * 2 * (t - 1) / t * activation,
        "dp": 2 * (d - 1) / d * 2 * share,
        "pp": micro_batches * activation if p > 1 else 0.0,
    }


def between_nodes(
    sizes: Sizes, order: Sequence[str], gpus_per_node: int, sent: Mapping[str, float]
) -> dict[str, float]:
    """Bytes of a step, by axis, whose sender and receiver are on different nodes; all ranks together."""
    return {
        axis: sent[axis]
        * sum(
            a // gpus_per_node != b // gpus_per_node
            for ranks in groups_along(axis, sizes, order)
            for a, b in _messages(axis, ranks)
        )
        for axis in order
    }


def _messages(axis: str, ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(sender, receiver): round the ring, or along the pipeline there and back."""
    for a, b in pairwise(ranks):
        yield a, b
        if axis == "pp":
            yield b, a
    if axis != "pp" and len(ranks) > 1:
        yield ranks[-1], ranks[0]


def least_between_nodes(sizes: Sizes, gpus_per_node: int, sent: Mapping[str, float]) -> float:
    """The fewest bytes between nodes that any order of the axes has."""
    return min(
        math.fsum(between_nodes(sizes, order, gpus_per_node, sent).values()) for order in permutations(sizes)
    )
