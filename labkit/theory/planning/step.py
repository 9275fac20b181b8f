"""The seconds of one training step, term by term."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.theory.flops import train_step_flops, utilization
from labkit.theory.planning.cluster import Cluster
from labkit.theory.planning.compute import head_work, host_floor, layer_work
from labkit.theory.planning.job import Job, Plan
from labkit.theory.planning.parts import Parts
from labkit.theory.planning.software import Software
from labkit.theory.planning.stages import Stage, kinds_of, stage_parameters, stage_routed
from labkit.theory.planning.traffic import (
    context_seconds,
    dispatch_seconds,
    reduce_seconds,
    send_seconds,
    tensor_seconds,
)

UPDATE_BYTES = 34  # AdamW in fp32: gradient, weight and two averages read, three written, a 16-bit weight too
CLEAR_BYTES = 6  # gradients of all parameters cleared


@dataclass(frozen=True)
class StepTime(Parts):
    """Seconds of a step on the slowest stage, by term.

    products: matrix products. elementwise: everything else on the GPU. tensor, context: their traffic.
    dispatch: rows sent to experts and back. host: waiting for launches where the GPU is faster than the host.
    bubble: waiting while the pipeline fills and drains. send: between stages. data: gradients and weights
    between replicas. optimizer: the update and the sums of gradients. stall: what sends and receives between
    stages wait in a job of many nodes, whatever they carry.
    """

    products: float
    elementwise: float
    tensor: float
    context: float
    dispatch: float
    host: float
    bubble: float
    send: float
    data: float
    optimizer: float
    stall: float


@dataclass(frozen=True)
class _Turn(Parts):
    """Seconds of one micro-batch, forward and backward, on one stage."""

    products: float
    elementwise: float
    tensor: float
    context: float
    dispatch: float
    host: float

    def __add__(self, other: _Turn) -> _Turn:
        theirs = other.as_dict()
        return _Turn(**{part: seconds + theirs[part] for part, seconds in self.as_dict().items()})

    def __mul__(self, times: int) -> _Turn:
        return _Turn(**{part: times * seconds for part, seconds in self.as_dict().items()})


def _layer_turn(job: Job, plan: Plan, layer: int, cluster: Cluster, software: Software) -> _Turn:
    """Of the layer with that number in the model."""
    work = layer_work(job, plan.share, cluster, software, layer)
    tensor = tensor_seconds(job, plan.share, cluster, software, layer)
    context = context_seconds(job, plan, cluster, work.products / 4)
    dispatch = dispatch_seconds(job, plan, cluster, layer)
    busy = work.total + tensor + context + dispatch
    host = max(0.0, host_floor(plan, cluster, software) - busy)
    return _Turn(work.products, work.elementwise, tensor, context, dispatch, host)


def _turn(job: Job, plan: Plan, stage: Stage, cluster: Cluster, software: Software) -> _Turn:
    head = head_work(job, plan.share, cluster, software)
    turn = _Turn(stage.head * head.products, stage.head * head.elementwise, 0.0, 0.0, 0.0, 0.0)
    for layer, number in stage.by_kind(job.model):
        turn += _layer_turn(job, plan, layer, cluster, software) * number
    return turn


def step_time(job: Job, plan: Plan, cluster: Cluster, software: Software) -> StepTime:
    """The seconds of one step.

    1F1B: the slowest stage works on its m micro-batches one after the other; before and after, it waits for
    one micro-batch on each of the other stages (interleaved: on a v-th of them). What is between stages,
    replicas and the optimizer comes on top.
    """
    kinds = kinds_of(job.model, plan.pipeline, software.balance)
    turns = [(_turn(job, plan, stage, cluster, software), number) for stage, number in kinds]
    slowest = max((turn for turn, _ in turns), key=lambda turn: turn.total)
    m = plan.micro_batches(job)
    waits = (sum(turn.total * number for turn, number in turns) - slowest.total) / plan.chunks
    count, routed = max(_parameters(job, plan, stage) for stage, _ in kinds)
    sends = m * plan.chunks + plan.pipeline - 1
    return StepTime(
        products=m * slowest.products,
        elementwise=m * slowest.elementwise,
        tensor=m * slowest.tensor,
        context=m * slowest.context,
        dispatch=m * slowest.dispatch,
        host=m * slowest.host,
        bubble=waits,
        send=sends * send_seconds(job, plan, cluster, software),
        data=reduce_seconds(count, slowest.total * 2 / 3, job, plan, cluster, software, routed),
        optimizer=_optimizer_seconds(count, routed, m, plan, cluster, software),
        stall=_waits_on(plan, m) * _wait_seconds(cluster, software),
    )


def _parameters(job: Job, plan: Plan, stage: Stage) -> tuple[int, int]:
    """Of a stage on one rank: all, and those of its experts."""
    count = stage_parameters(job.model, plan.pipeline, stage, plan.tensor, plan.expert)
    return count, stage_routed(job.model, stage, plan.tensor, plan.expert)


def _optimizer_seconds(
    count: float, routed: float, m: int, plan: Plan, cluster: Cluster, software: Software
) -> float:
    shards, sharing = (plan.replicas, plan.replicas // plan.expert) if plan.zero else (1, 1)
    own = (count - routed) / shards + routed / sharing
    update = software.optimizer_passes * (UPDATE_BYTES * own + CLEAR_BYTES * count)
    return (update + m * software.accumulate_bytes * count) / cluster.rates.memory


def _waits_on(plan: Plan, micro_batches: int) -> int:
    """Sends and receives of a step that one stage waits for, one after the other.

    A stage between two others receives and sends in forward and in backward, 4 for each micro-batch and
    chunk; of two stages each does 2. While the pipeline fills and drains, each further stage costs 2 more.
    """
    if plan.pipeline == 1:
        return 0
    each = 4 if plan.pipeline > 2 or plan.chunks > 1 else 2
    return each * micro_batches * plan.chunks + 2 * (plan.pipeline - 1)


def _wait_seconds(cluster: Cluster, software: Software) -> float:
    """Of one send or receive between stages: 0 on few nodes, `stall` on 64 and more.

    In proportion to the nodes between the two. It was seen on 64 nodes and on 16 it was not; what lies beyond
    is unknown, and taken to be no worse.
    """
    many, few = 64, software.quiet_nodes
    return software.stall * min(1.0, max(0.0, (cluster.nodes - few) / (many - few)))


def model_utilization(job: Job, seconds: float, cluster: Cluster) -> float:
    """MFU of a step of that many seconds, full attention counted (as SC21 and PaLM count)."""
    flops = train_step_flops(job.model, job.sequence, job.batch)
    return utilization(flops, seconds, cluster.num_gpus, cluster.gpu.dense_bf16)
