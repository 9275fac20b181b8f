"""Which plans run, how long a step takes, and which is the fastest. Taken away where lesson 09 is graded.

The step: compute and tensor-parallel traffic of m micro-batches, a bubble of p - 1 of them, and what the
last backward does not hide of the replicas' traffic (Narayanan SC21, sections 2 and 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from labkit.theory.flops import train_step_flops
from labkit.theory.grid.plan import GridPlan, Machines
from labkit.theory.memory import TrainingPlan, worst_stage
from labkit.theory.models import ModelConfig
from labkit.theory.parameters import count_parameters

ELEMENT = 2  # bytes of an activation, a weight and a gradient on the wire
HEADROOM = 0.1
BACKWARD = 2 / 3  # of a micro-batch's seconds


def seconds_by_term(
    plan: GridPlan, model: ModelConfig, machines: Machines, batch: int, sequence: int
) -> dict[str, float]:
    """compute, tensor, bubble and data, in seconds of one step on the slowest stage."""
    layers = -(-model.num_layers // plan.pipeline)
    compute = layers * _layer_seconds(plan, model, machines, sequence)
    tensor = layers * _tensor_seconds(plan, model, machines, sequence)
    micro_batches = batch // (plan.data * plan.micro_batch)
    return {
        "compute": micro_batches * compute,
        "tensor": micro_batches * tensor,
        "bubble": (plan.pipeline - 1) * (compute + tensor),
        "data": _data_seconds(plan, model, machines, BACKWARD * (compute + tensor)),
    }


def _layer_seconds(plan: GridPlan, model: ModelConfig, machines: Machines, sequence: int) -> float:
    """A layer's forward and backward of a micro-batch, with its share of the head's operations."""
    flops = train_step_flops(model, sequence, plan.micro_batch) / model.num_layers
    again = 4 / 3 if plan.recompute else 1.0
    return max(again * flops / plan.tensor / machines.flops, machines.layer_floor)


def _tensor_seconds(plan: GridPlan, model: ModelConfig, machines: Machines, sequence: int) -> float:
    """Two all-reduces in forward and two in backward; forward's once more with recomputation."""
    t, num_bytes = plan.tensor, ELEMENT * plan.micro_batch * sequence * model.hidden
    times = 6 if plan.recompute else 4
    return times * 2 * (t - 1) / t * num_bytes / machines.bandwidth(t, 1)


def _data_seconds(plan: GridPlan, model: ModelConfig, machines: Machines, hidden: float) -> float:
    """A reduce-scatter of gradients and an all-gather: of gradients too (stage 0), or of new weights (1)."""
    d, own = plan.data, count_parameters(model).total / (plan.tensor * plan.pipeline)
    half = ELEMENT * own * (d - 1) / d / machines.bandwidth(d, plan.tensor)
    if plan.zero == 0:
        return max(0.0, 2 * half - hidden)
    return max(0.0, half - hidden) + half


def broken_rules(
    plan: GridPlan, model: ModelConfig, machines: Machines, batch: int, sequence: int
) -> dict[str, tuple[float, ...]]:
    """Every rule that the plan breaks -> the numbers that do not agree."""
    shape = dict(_broken_shapes(plan, model, machines, batch))
    if shape:
        return shape
    held = held_bytes(plan, model, batch, sequence)
    return {"memory": (held,)} if held > (1 - HEADROOM) * machines.memory else {}


def _broken_shapes(
    plan: GridPlan, model: ModelConfig, machines: Machines, batch: int
) -> Iterator[tuple[str, tuple[float, ...]]]:
    t = plan.tensor
    if plan.num_gpus != machines.num_gpus:
        yield "gpus", (plan.num_gpus, machines.num_gpus)
    if machines.gpus_per_node % t:
        yield "node", (t, machines.gpus_per_node)
    for rule, size in (("heads", model.num_heads), ("kv heads", model.num_kv_heads), ("ffn", model.ffn)):
        if size % t:
            yield rule, (size, t)
    if plan.pipeline > model.num_layers:
        yield "layers", (plan.pipeline, model.num_layers)
    if batch % (plan.data * plan.micro_batch):
        yield "batch", (batch, plan.data * plan.micro_batch)


def held_bytes(plan: GridPlan, model: ModelConfig, batch: int, sequence: int) -> float:
    """Bytes of the fullest stage: mixed AdamW of 16 bytes, fused attention, no sequence parallelism."""
    spread = TrainingPlan(
        model,
        sequence,
        plan.micro_batch,
        recompute="full" if plan.recompute else "none",
        data_parallel=plan.data,
        zero_stage=plan.zero,
        tensor_parallel=plan.tensor,
        pipeline_parallel=plan.pipeline,
        num_micro_batches=batch // (plan.data * plan.micro_batch),
    )
    return worst_stage(spread)[1].total


def fastest(model: ModelConfig, machines: Machines, batch: int, sequence: int) -> tuple[GridPlan, float]:
    """The fastest plan that runs, and its seconds. ValueError if none runs.

    Times are quick to compute and memory is not: plans are tried in the order of their times.
    """

    def seconds(plan: GridPlan) -> float:
        return sum(seconds_by_term(plan, model, machines, batch, sequence).values())

    for plan in sorted(shaped_plans(model, machines, batch), key=seconds):
        if held_bytes(plan, model, batch, sequence) <= (1 - HEADROOM) * machines.memory:
            return plan, seconds(plan)
    raise ValueError(f"no plan of {model.name} fits on {machines.num_gpus} GPUs")


def shaped_plans(model: ModelConfig, machines: Machines, batch: int) -> Iterator[GridPlan]:
    """Every plan that breaks no rule but that of memory, perhaps."""
    n = machines.num_gpus
    for t, p in product(_divisors(machines.gpus_per_node), range(1, model.num_layers + 1)):
        if n % (t * p) or batch % (n // (t * p)):
            continue
        d = n // (t * p)
        for b, zero, recompute in product(_divisors(batch // d), (0, 1), (False, True)):
            plan = GridPlan(d, t, p, b, zero, recompute)
            if not dict(_broken_shapes(plan, model, machines, batch)):
                yield plan


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
