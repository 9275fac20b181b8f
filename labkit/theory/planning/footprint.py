"""The memory of each pipeline stage: the state, what is in flight, and what a framework adds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from labkit.theory.activations import (
    Recompute,
    embedding_kept,
    head_kept,
    kept_bytes,
    layer_activation_bytes,
    layer_kept,
    logits_kept,
)
from labkit.theory.parameters import embedding_weights, head_weights, layer_weights
from labkit.theory.pipeline import Schedule, in_flight
from labkit.theory.planning.job import Job, Plan, Share
from labkit.theory.planning.parts import Parts
from labkit.theory.planning.software import Software
from labkit.theory.planning.stages import Stage, kinds_of, stage_parameters, stage_routed, stages_of
from labkit.theory.recipes import StateBytes, state_bytes

ELEMENT = 2  # bytes of an activation
LOGITS_COPIES = 2.5  # the head's output in 16 bits and in fp32, and what the loss keeps: 10 bytes for kept 4


@dataclass(frozen=True)
class Footprint(Parts):
    """Bytes on one GPU of one stage, by what they are.

    copies: what eager execution keeps beside the tensors of the formulas.  working: held for moments, a
    recomputed layer, gathered weights or gathered inputs.  runtime: libraries.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    copies: float
    logits: float
    working: float
    runtime: float


@dataclass(frozen=True)
class _Layer:
    """Bytes of one micro-batch in one layer on one GPU. copies: rotated queries, and keys and values."""

    kept: float
    whole: float
    copies: float


@dataclass(frozen=True)
class _Micro:
    """Bytes of one micro-batch outside the layers on one GPU."""

    embedding: float
    head: float
    logits: float
    gathered: float


@lru_cache(maxsize=65536)
def _layer(job: Job, share: Share, number: int) -> _Layer:
    """Of the layer with that number in the model."""
    shape = job.model, job.sequence // share.context, share.micro_batch

    def kept(recompute: Recompute) -> float:
        return layer_activation_bytes(
            *shape,
            recompute,
            share.tensor,
            share.split,
            job.attention,
            layer=number,
            shard_checkpoints=share.split,
        )

    copied = [item for item in layer_kept(*shape) if item.name in ("queries", "keys", "values")]
    return _Layer(kept(share.recompute), kept("none"), kept_bytes(copied, share.tensor, share.split))


@lru_cache(maxsize=65536)
def _micro(job: Job, share: Share) -> _Micro:
    model, tensor, split = job.model, share.tensor, share.split
    shape = model, job.sequence // share.context, share.micro_batch
    token = ELEMENT * share.tokens(job)
    return _Micro(
        embedding=kept_bytes(embedding_kept(*shape), tensor, split),
        head=kept_bytes(head_kept(*shape), tensor, split),
        logits=LOGITS_COPIES * kept_bytes(logits_kept(*shape), tensor),
        gathered=token * model.hidden if split else 0.0,
    )


def footprint(job: Job, plan: Plan, stage: Stage, software: Software) -> Footprint:
    """The bytes on one GPU of that stage at the peak of a step.

    The formulas (labkit.theory.memory) give state, activations in flight and logits. Added to them:
    the copies of queries, keys and values that rotary positions make, for each layer in flight; the buffers
    in which sequence parallelism gathers a whole input; the libraries.
    """
    one = _micro(job, plan.share)
    schedule: Schedule = "interleaved" if plan.chunks > 1 else "1f1b"
    held = in_flight(schedule, stage.place, plan.pipeline, plan.micro_batches(job), plan.chunks)
    state = _state(job, plan, stage)
    layers = [(_layer(job, plan.share, layer), number) for layer, number in stage.by_kind(job.model)]
    copied = software.rotated_copies and plan.recompute != "full"
    again = max((layer.whole - layer.kept for layer, _ in layers), default=0.0)
    return Footprint(
        weights=state.weights,
        gradients=state.gradients,
        optimizer=state.optimizer,
        activations=held
        * (sum(layer.kept * number for layer, number in layers) + stage.embedding * one.embedding)
        + stage.head * one.head,
        copies=held * sum(layer.copies * number for layer, number in layers) if copied else 0.0,
        logits=stage.head * one.logits,
        working=again + software.gather_buffers * one.gathered + _gathered_weights(job, plan),
        runtime=software.runtime,
    )


def _state(job: Job, plan: Plan, stage: Stage) -> StateBytes:
    """Under ZeRO, ranks with the same experts share those, and all replicas share the rest."""
    count = stage_parameters(job.model, plan.pipeline, stage, plan.tensor, plan.expert)
    routed = stage_routed(job.model, stage, plan.tensor, plan.expert)
    rest = state_bytes(count - routed, job.recipe, plan.zero, plan.replicas)
    return rest + state_bytes(routed, job.recipe, plan.zero, plan.replicas // plan.expert)


def _gathered_weights(job: Job, plan: Plan) -> float:
    """What ZeRO 3 holds unsharded: a unit in use and the next; 2 and 3: a unit's gradient. The largest of
    layers, embedding and head count (as in labkit.theory.memory).
    """
    if plan.zero < 2 or plan.replicas == 1:
        return 0.0
    model = job.model
    units = [layer_weights(model)] * model.num_layers + [embedding_weights(model), head_weights(model)]
    largest, second, *_ = sorted((unit.per_rank(plan.tensor) for unit in units), reverse=True)
    gathered = (largest + second) * job.recipe.weights if plan.zero == 3 else 0
    return largest * job.recipe.gradients + gathered


def footprints(job: Job, plan: Plan, software: Software) -> list[Footprint]:
    """One a stage."""
    return [
        footprint(job, plan, stage, software)
        for stage in stages_of(job.model, plan.pipeline, software.balance)
    ]


def peak_bytes(job: Job, plan: Plan, software: Software) -> float:
    """The bytes of the fullest stage: those that must fit."""
    kinds = kinds_of(job.model, plan.pipeline, software.balance)
    return max(footprint(job, plan, stage, software).total for stage, _ in kinds)
