"""Why a plan cannot run, in words: everything at once, not the first reason alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from labkit.theory.planning.cluster import Cluster
from labkit.theory.planning.footprint import footprints
from labkit.theory.planning.job import Job, Plan
from labkit.theory.planning.software import NANOTRON, Software
from labkit.theory.units import binary_text

HEADROOM = 0.1  # of the GPU's memory: gaps between tensors, and buffers that no formula knows


def feasible(job: Job, plan: Plan, cluster: Cluster, software: Software = NANOTRON) -> list[str]:
    """Every reason why the plan does not run on the cluster; none if it does."""
    return impossible(job, plan, cluster, software) or too_large(job, plan, cluster, software)


def impossible(job: Job, plan: Plan, cluster: Cluster, software: Software = NANOTRON) -> list[str]:
    """Every reason, apart from memory, why there is no such plan."""
    below = [
        f"{name} is {getattr(plan, name)}, and must be 1 or more"
        for name in ("data", "tensor", "pipeline", "context", "expert", "micro_batch", "chunks")
        if getattr(plan, name) < 1
    ]
    reasons = _shape_reasons(job, plan), _expert_reasons(job, plan), _node_reasons(plan, cluster)
    return below or [*chain(*reasons), *_batch_reasons(job, plan), *_software_reasons(plan, software)]


def _shape_reasons(job: Job, plan: Plan) -> Iterator[str]:
    model, t, c = job.model, plan.tensor, plan.context
    if plan.zero not in (0, 1, 2, 3):
        yield f"there is no ZeRO stage {plan.zero}: it is 0, 1, 2 or 3"
    if model.num_heads % t:
        yield f"{model.num_heads} attention heads do not divide over {t} tensor-parallel ranks"
    elif model.num_kv_heads % t and t % model.num_kv_heads:
        yield f"{model.num_kv_heads} key-value heads and {t} tensor-parallel ranks: one must divide the other"
    if model.ffn % t:
        yield f"an MLP of width {model.ffn} does not divide over {t} tensor-parallel ranks"
    if job.sequence % c:
        yield f"a sequence of {job.sequence} tokens does not divide over {c} context-parallel ranks"
    elif plan.share.split and job.sequence // c % t:
        yield f"{job.sequence // c} tokens do not divide over {t} ranks for sequence parallelism"
    if c > 1 and job.attention == "explicit":
        yield "context parallelism needs fused attention: no rank sees all scores"


def _expert_reasons(job: Job, plan: Plan) -> Iterator[str]:
    model, e, mixture = job.model, plan.expert, job.model.mixture
    if mixture is None:
        if e > 1:
            yield f"{model.name} has no experts to share out over {e} ranks"
        return
    if mixture.num_experts % e:
        yield f"{mixture.num_experts} experts do not divide over {e} expert-parallel ranks"
    if plan.replicas % e:
        yield f"{e} expert-parallel ranks do not divide the {plan.replicas} data- and context-parallel ones"
    if mixture.expert_ffn % plan.tensor:
        yield f"experts of width {mixture.expert_ffn} do not divide over {plan.tensor} tensor-parallel ranks"
    if plan.zero > 1:
        yield f"ZeRO {plan.zero} of experts is not planned for: use ZeRO 0 or 1"
    if model.latent and plan.context > 1:
        yield "context parallelism of squeezed keys and values is not planned for"


def _node_reasons(plan: Plan, cluster: Cluster) -> Iterator[str]:
    t, node = plan.tensor, cluster.gpus_per_node
    if plan.num_gpus != cluster.num_gpus:
        yield f"the plan is for {plan.num_gpus} GPUs, and there are {cluster.num_gpus}"
    if node % t and t % node:
        yield f"{t} tensor-parallel ranks do not fit evenly into nodes of {node} GPUs"


def _batch_reasons(job: Job, plan: Plan) -> Iterator[str]:
    at_once = plan.data * plan.micro_batch
    if job.batch % at_once:
        yield (
            f"a batch of {job.batch} sequences is no multiple of {at_once} "
            f"({plan.data} replicas x micro-batches of {plan.micro_batch})"
        )
        return
    if plan.chunks > 1 and (plan.pipeline == 1 or plan.micro_batches(job) % plan.pipeline):
        yield (
            f"interleaving needs a pipeline, and a multiple of its {plan.pipeline} stages in micro-batches; "
            f"there are {plan.micro_batches(job)}"
        )
    if plan.pipeline * plan.chunks > job.model.num_layers:
        yield f"{job.model.num_layers} layers are too few for {plan.pipeline * plan.chunks} pieces"
    elif plan.chunks > 1 and job.model.num_layers % (plan.pipeline * plan.chunks):
        pieces = f"{plan.pipeline} stages x {plan.chunks} chunks"
        yield f"{job.model.num_layers} layers are no multiple of {pieces}"
    if plan.zero > 1 and plan.pipeline > 1:
        yield (
            f"ZeRO {plan.zero} with a pipeline would reduce or gather weights for every micro-batch of "
            f"every stage: use ZeRO 1"
        )


def _software_reasons(plan: Plan, software: Software) -> Iterator[str]:
    if software.most_zero < plan.zero <= 3:
        yield f"{software.name} has no ZeRO {plan.zero}: it has stages up to {software.most_zero}"
    if plan.chunks > 1 and not software.interleaves:
        yield f"{software.name} does not interleave stages: {plan.chunks} chunks must be 1"


def too_large(job: Job, plan: Plan, cluster: Cluster, software: Software) -> list[str]:
    """Why the plan's fullest stage does not fit with a tenth of the memory free; none if it does."""
    held = footprints(job, plan, software)
    worst = max(range(len(held)), key=lambda stage: held[stage].total)
    usable = memory_limit(cluster)
    if held[worst].total <= usable:
        return []
    part, size = max(held[worst].as_dict().items(), key=lambda item: item[1])
    where = f"stage {worst + 1} of {plan.pipeline} needs" if plan.pipeline > 1 else "a GPU needs"
    return [
        f"{where} {binary_text(held[worst].total)}, most of it {part} ({binary_text(size)}); of "
        f"{binary_text(cluster.gpu.memory)} a tenth stays free, which leaves {binary_text(usable)}"
    ]


def memory_limit(cluster: Cluster) -> float:
    """Bytes that a plan may fill."""
    return (1 - HEADROOM) * cluster.gpu.memory
