"""Layers over pipeline stages, balanced by cost with the head counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from labkit.theory.models import ModelConfig
from labkit.theory.parameters import embedding_weights, head_weights, layer_weights
from labkit.theory.pipeline import layers_of_stages
from labkit.theory.planning.software import Balance


@dataclass(frozen=True)
class Stage:
    """What one pipeline stage holds. place: its number, from 0."""

    place: int
    layers: int
    embedding: bool
    head: bool


def stages_of(model: ModelConfig, num_stages: int, balance: Balance) -> tuple[Stage, ...]:
    """The stages of a pipeline: "cost" balances work with the head counted, "layers" counts layers alone."""
    return _BALANCES[balance](model, num_stages)


def _stages(counts: Sequence[int]) -> tuple[Stage, ...]:
    last = len(counts) - 1
    return tuple(Stage(place, layers, place == 0, place == last) for place, layers in enumerate(counts))


@lru_cache(maxsize=4096)
def equal_stages(model: ModelConfig, num_stages: int) -> tuple[Stage, ...]:
    """As many layers on each stage, as far as they go (Megatron-LM)."""
    return _stages(layers_of_stages(model.num_layers, num_stages))


@lru_cache(maxsize=4096)
def balanced_stages(model: ModelConfig, num_stages: int) -> tuple[Stage, ...]:
    """Layers of each stage when a stage ends as soon as its share of the work is passed.

    Work is counted in weights that a token is multiplied with: a layer's matrices, and V x h for the head,
    which is as much as several layers of a small model: of 16 layers of a 1B model on two stages the first
    gets 11 and the last 5 with the head. (nanotron's rule, `build_model`; the embedding costs nothing.)
    """
    layer = layer_weights(model).total - layer_weights(model).replicated
    total = model.num_layers * layer + model.vocabulary * model.hidden
    counts, stage, done = [0] * num_stages, 0, 0
    for _ in range(model.num_layers):
        counts[stage] += 1
        done += layer
        if stage < num_stages - 1 and done * num_stages > total * (stage + 1):
            stage += 1
    return _stages(counts)


_BALANCES = {"cost": balanced_stages, "layers": equal_stages}


@lru_cache(maxsize=4096)
def kinds_of(model: ModelConfig, num_stages: int, balance: Balance) -> tuple[tuple[Stage, int], ...]:
    """Stages that do the same work, each kind by its first stage, and how many there are of it.

    The first of a kind is also the fullest: it has the most micro-batches in flight.
    """
    kinds: dict[tuple[int, bool, bool], list[Stage]] = {}
    for stage in stages_of(model, num_stages, balance):
        kinds.setdefault((stage.layers, stage.embedding, stage.head), []).append(stage)
    return tuple((same[0], len(same)) for same in kinds.values())


@lru_cache(maxsize=4096)
def stage_parameters(model: ModelConfig, num_stages: int, stage: Stage, tensor: int) -> int:
    """Parameters of a stage on one tensor-parallel rank; a tied table is on the first and the last."""
    count = stage.layers * layer_weights(model).per_rank(tensor)
    if stage.embedding:
        count += embedding_weights(model).per_rank(tensor)
    if stage.head:
        count += head_weights(model).per_rank(tensor)
        if model.tied_embeddings and num_stages > 1:
            count += -(-model.vocabulary * model.hidden // tensor)
    return count
