"""The search: every grid of the cluster's GPUs, every micro-batch, chunking, ZeRO stage and recomputation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product

from labkit.theory.activations import Recompute
from labkit.theory.planning.cluster import Cluster
from labkit.theory.planning.feasible import impossible, memory_limit
from labkit.theory.planning.footprint import Footprint, footprints, peak_bytes
from labkit.theory.planning.job import Job, Plan
from labkit.theory.planning.software import NANOTRON, Software
from labkit.theory.planning.step import StepTime, model_utilization, step_time
from labkit.theory.units import binary_text

SHORTEST_SHARE = 8192  # tokens of a sequence below which context parallelism has nothing to gain
MOST_CHUNKS = 4
TERMS = {
    "products": "matrix products",
    "elementwise": "elementwise kernels",
    "tensor": "tensor-parallel traffic",
    "context": "context-parallel traffic",
    "dispatch": "rows to experts and back",
    "host": "waiting for the host's launches",
    "bubble": "the pipeline's bubble",
    "send": "sending between stages",
    "data": "gradients and weights between replicas",
    "optimizer": "the optimizer's step and gradient sums",
    "stall": "sends and receives that wait on so many nodes",
}


@dataclass(frozen=True)
class Priced:
    """A plan with what it holds and how long a step takes. held: one entry a stage."""

    plan: Plan
    held: tuple[Footprint, ...]
    time: StepTime
    tokens_per_gpu: float
    utilization: float

    @property
    def fullest(self) -> int:
        """The stage that holds most."""
        return max(range(len(self.held)), key=lambda stage: self.held[stage].total)


@dataclass(frozen=True)
class Choice:
    """The best plan of each of the best grids, and what was looked at.

    best: to be measured.  runners_up: (plan, why it lost to the first).  considered: plans priced or refused
    for their memory.  fitting: those that fit.
    """

    best: tuple[Priced, ...]
    runners_up: tuple[tuple[Priced, str], ...]
    considered: int
    fitting: int


def price(job: Job, plan: Plan, cluster: Cluster, software: Software = NANOTRON) -> Priced:
    """Memory and time of one plan, fitting or not. ValueError with every other reason why it cannot run."""
    reasons = impossible(job, plan, cluster, software)
    if reasons:
        raise ValueError("; ".join(reasons))
    return _priced(job, plan, cluster, software)


def _priced(job: Job, plan: Plan, cluster: Cluster, software: Software) -> Priced:
    time = step_time(job, plan, cluster, software)
    return Priced(
        plan,
        tuple(footprints(job, plan, software)),
        time,
        tokens_per_gpu=job.tokens / (time.total * cluster.num_gpus),
        utilization=model_utilization(job, time.total, cluster),
    )


def choose(
    job: Job,
    cluster: Cluster,
    software: Software = NANOTRON,
    count: int = 3,
    runners_up: int = 3,
    expert: int | None = None,
) -> Choice:
    """The `count` fastest plans that fit, of different grids, and the `runners_up` after them.

    expert: look only at plans that share experts out over so many ranks.
    ValueError when nothing fits, with the least memory that any plan needs.
    """
    if expert not in (None, 1) and job.model.mixture is None:
        raise ValueError(f"{job.model.name} has no experts to share out over {expert} ranks")
    seconds: dict[tuple[int, int, int], tuple[float, Plan]] = {}
    considered = fitting = 0
    least = float("inf")
    for plan in candidates(job, cluster, expert, software):
        considered += 1
        peak = peak_bytes(job, plan, software)
        least = min(least, peak)
        if peak > memory_limit(cluster):
            continue
        fitting += 1
        grid = plan.tensor, plan.pipeline, plan.context
        found = step_time(job, plan, cluster, software).total, plan
        seconds[grid] = min(seconds.get(grid, found), found, key=lambda pair: pair[0])
    if not seconds:
        raise ValueError(_nothing_fits(job, cluster, considered, least, expert))
    ordered = sorted(seconds.values(), key=lambda pair: pair[0])[: count + runners_up]
    priced = [_priced(job, plan, cluster, software) for _, plan in ordered]
    losers = tuple((loser, why(loser, priced[0])) for loser in priced[count:])
    return Choice(tuple(priced[:count]), losers, considered, fitting)


def _nothing_fits(job: Job, cluster: Cluster, considered: int, least: float, expert: int | None) -> str:
    if not considered and expert and next(candidates(job, cluster), None):
        return (
            f"no plan of {job.model.name} on {cluster.num_gpus} GPUs shares its experts out over {expert} "
            f"ranks: {expert} must divide the number of experts and that of replicas"
        )
    if not considered:
        return (
            f"no grid of {cluster.num_gpus} GPUs divides {job.model.name}'s heads and layers and a batch of "
            f"{job.batch} sequences: change the batch or the number of nodes"
        )
    return (
        f"none of {considered} plans of {job.model.name} on {cluster.num_gpus} x {cluster.gpu.name} fits: "
        f"the smallest needs {binary_text(least)} a GPU, and {binary_text(memory_limit(cluster))} may be "
        f"filled. Take more nodes, GPUs with more memory, shorter sequences or a recipe of fewer bytes"
    )


def candidates(
    job: Job, cluster: Cluster, expert: int | None = None, software: Software = NANOTRON
) -> Iterator[Plan]:
    """Every plan that divides and that the framework can run: grid, experts' ranks, micro-batch, chunks, ZeRO
    stage and recomputation.
    """
    most_chunks = MOST_CHUNKS if software.interleaves else 1
    for plan in chain.from_iterable(_expert_degrees(job, grid, expert) for grid in _grids(job, cluster)):
        for micro_batch in _divisors(job.batch // plan.data):
            for chunks in range(1, most_chunks + 1):
                one = replace(plan, micro_batch=micro_batch, chunks=chunks)
                if _divides(job, one):
                    stages = [zero for zero in _stages(job, one) if zero <= software.most_zero]
                    for zero, recompute in product(stages, _recomputes(job)):
                        yield replace(one, zero=zero, recompute=recompute)


def _grids(job: Job, cluster: Cluster) -> Iterator[Plan]:
    """Every d x t x p x c = n with tensor parallelism inside a node."""
    model, gpus = job.model, cluster.num_gpus
    for t in _divisors(cluster.gpus_per_node):
        if model.num_heads % t or model.ffn % t or (model.num_kv_heads % t and t % model.num_kv_heads):
            continue
        if model.mixture and model.mixture.expert_ffn % t:
            continue
        for c in [1] if model.latent else _divisors(gpus // t):
            if job.sequence % (c * t) or (c > 1 and job.sequence // c < SHORTEST_SHARE):
                continue
            for p in _divisors(gpus // (t * c)):
                d = gpus // (t * c * p)
                if p <= model.num_layers and job.batch % d == 0:
                    yield Plan(d, t, p, context=c)


def _expert_degrees(job: Job, plan: Plan, asked: int | None) -> Iterator[Plan]:
    """The grid with every number of replicas that can share experts out, or with the one asked for."""
    mixture = job.model.mixture
    degrees = _divisors(math.gcd(mixture.num_experts, plan.replicas)) if mixture else [1]
    return (replace(plan, expert=degree) for degree in degrees if asked in (None, degree))


def _divides(job: Job, plan: Plan) -> bool:
    if plan.chunks == 1:
        return True
    even = plan.pipeline > 1 and plan.micro_batches(job) % plan.pipeline == 0
    return even and job.model.num_layers % (plan.pipeline * plan.chunks) == 0


def _stages(job: Job, plan: Plan) -> tuple[int, ...]:
    """ZeRO stages worth a look. In a pipeline 1 alone; with experts 0 or 1, as `impossible` says.

    There, 0 hides nothing that 1 does not, holds more, and measured runs with it were up to 28 times slower.
    """
    if plan.replicas == 1:
        return (1,)
    if plan.pipeline > 1:
        return (1,)
    return (0, 1) if job.model.mixture else (0, 1, 2, 3)


def _recomputes(job: Job) -> tuple[Recompute, ...]:
    """Fused attention keeps no scores: there is nothing for selective recomputation to save."""
    return ("none", "full") if job.attention == "fused" else ("none", "selective", "full")


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def why(loser: Priced, winner: Priced) -> str:
    """What a plan loses to another, in words: the terms that cost it most."""
    mine, theirs = loser.time.as_dict(), winner.time.as_dict()
    extra = sorted(((mine[term] - theirs[term], term) for term in mine), reverse=True)
    told = [f"{TERMS[term]} (+{seconds:.3g} s)" for seconds, term in extra[:2] if seconds > 0]
    slower = loser.time.total / winner.time.total - 1
    return f"{slower:.1%} slower: " + (" and ".join(told) or "the same")
