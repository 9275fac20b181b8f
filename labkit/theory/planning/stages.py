"""Layers over pipeline stages, balanced by cost with the head counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from labkit.theory.models import ModelConfig
from labkit.theory.parameters import embedding_weights, head_weights, layer_weights, routed_weights
from labkit.theory.pipeline import layers_of_stages
from labkit.theory.planning.software import Balance


@dataclass(frozen=True)
class Stage:
    """What one pipeline stage holds. place: its number, from 0.  mixtures: how many layers have experts."""

    place: int
    layers: int
    embedding: bool
    head: bool
    mixtures: int = 0

    def by_kind(self, model: ModelConfig) -> list[tuple[int, int]]:
        """(a layer's number in the model, how many of the stage's layers are like it), of each kind."""
        first = model.mixture.dense_layers if model.mixture else 0
        kinds = [(0, self.layers - self.mixtures), (first, self.mixtures)]
        return [(layer, number) for layer, number in kinds if number]


def stages_of(model: ModelConfig, num_stages: int, balance: Balance) -> tuple[Stage, ...]:
    """The stages of a pipeline: "cost" balances work with the head counted, "layers" counts layers alone."""
    return _BALANCES[balance](model, num_stages)


def _stages(model: ModelConfig, counts: Sequence[int]) -> tuple[Stage, ...]:
    last, made, done = len(counts) - 1, list[Stage](), 0
    for place, layers in enumerate(counts):
        mixtures = sum(model.has_experts(layer) for layer in range(done, done + layers))
        made.append(Stage(place, layers, place == 0, place == last, mixtures))
        done += layers
    return tuple(made)


@lru_cache(maxsize=4096)
def equal_stages(model: ModelConfig, num_stages: int) -> tuple[Stage, ...]:
    """As many layers on each stage, as far as they go (Megatron-LM)."""
    return _stages(model, layers_of_stages(model.num_layers, num_stages))


@lru_cache(maxsize=4096)
def balanced_stages(model: ModelConfig, num_stages: int) -> tuple[Stage, ...]:
    """Layers of each stage when a stage ends as soon as its share of the work is passed.

    Work is counted in weights that a token is multiplied with: a layer's matrices, and V x h for the head,
    which is as much as several layers of a small model: of 16 layers of a 1B model on two stages the first
    gets 11 and the last 5 with the head. (nanotron's rule, `build_model`; the embedding costs nothing.)
    """
    visited = model.mixture.active_experts if model.mixture else None
    weights = [layer_weights(model, layer, visited) for layer in range(model.num_layers)]
    costs = [layer.total - layer.replicated for layer in weights]
    total = sum(costs) + model.vocabulary * model.hidden
    counts, stage, done = [0] * num_stages, 0, 0
    for cost in costs:
        counts[stage] += 1
        done += cost
        if stage < num_stages - 1 and done * num_stages > total * (stage + 1):
            stage += 1
    return _stages(model, counts)


_BALANCES = {"cost": balanced_stages, "layers": equal_stages}


@lru_cache(maxsize=4096)
def kinds_of(model: ModelConfig, num_stages: int, balance: Balance) -> tuple[tuple[Stage, int], ...]:
    """Stages that do the same work, each kind by its first stage, and how many there are of it.

    The first of a kind is also the fullest: it has the most micro-batches in flight.
    """
    kinds: dict[tuple[int, bool, bool, int], list[Stage]] = {}
    for stage in stages_of(model, num_stages, balance):
        kinds.setdefault((stage.layers, stage.embedding, stage.head, stage.mixtures), []).append(stage)
    return tuple((same[0], len(same)) for same in kinds.values())


@lru_cache(maxsize=4096)
def stage_routed(model: ModelConfig, stage: Stage, tensor: int, expert: int) -> int:
    """Those of a stage's parameters on one rank that belong to experts which a router chooses among."""
    if model.mixture is None:
        return 0
    local = model.mixture.num_experts // expert
    return sum(
        number * routed_weights(model, layer, local).per_rank(tensor)
        for layer, number in stage.by_kind(model)
    )


@lru_cache(maxsize=4096)
def stage_parameters(model: ModelConfig, num_stages: int, stage: Stage, tensor: int, expert: int = 1) -> int:
    """Parameters of a stage on one tensor- and expert-parallel rank.

    A tied table is on the first stage and on the last.
    """
    local = model.mixture.num_experts // expert if model.mixture else None
    count = sum(
        number * layer_weights(model, layer, local).per_rank(tensor) for layer, number in stage.by_kind(model)
    )
    if stage.embedding:
        count += embedding_weights(model).per_rank(tensor)
    if stage.head:
        count += head_weights(model).per_rank(tensor)
        if model.tied_embeddings and num_stages > 1:
            count += -(-model.vocabulary * model.hidden // tensor)
    return count
