"""Seconds that GPUs spend sending: tensor, context, pipeline and data parallelism."""

from __future__ import annotations

from functools import lru_cache

from labkit.theory.planning.cluster import Cluster
from labkit.theory.planning.job import Job, Plan, Share
from labkit.theory.planning.software import Software


@lru_cache(maxsize=65536)
def tensor_seconds(job: Job, share: Share, cluster: Cluster, software: Software) -> float:
    """Tensor parallelism's traffic of one layer, forward and backward of a micro-batch.

    Two all-reduces each way (SC21, section 3.2), or as many pairs of all-gather and reduce-scatter: 8 times
    the layer's input. Full recomputation repeats the forward's; backward may gather inputs anew. Each is
    counted whole, not (t-1)/t of it: what a rank does not receive it still copies into the whole tensor.
    """
    t = share.tensor
    if t == 1:
        return 0.0
    times = 8 + (4 if share.recompute == "full" else 0)
    times += 2 if software.regathers and share.split else 0
    num_bytes = times * 2 * share.tokens(job) * job.model.hidden
    inside = t <= cluster.gpus_per_node
    part = software.link_share if inside else software.between_share
    return num_bytes / (cluster.all_gather_bandwidth(t, 1) * part)


def context_seconds(job: Job, plan: Plan, cluster: Cluster, hidden_by: float) -> float:
    """Context parallelism's traffic of one layer that its attention does not hide.

    Keys and values go round the ring in forward and backward, and their gradients once: three times
    2 x 2 bytes a key-value column.
    """
    c = plan.context
    if c == 1:
        return 0.0
    heads = min(plan.tensor, job.model.num_kv_heads)
    once = 4 * plan.share.tokens(job) * job.model.kv_width / heads * (c - 1)
    return max(0.0, 3 * once / cluster.all_gather_bandwidth(c, plan.tensor) - hidden_by)


def send_seconds(job: Job, plan: Plan, cluster: Cluster, software: Software) -> float:
    """One micro-batch over one boundary of the pipeline, both ways, as far as nothing hides it."""
    if plan.pipeline == 1:
        return 0.0
    num_bytes = 2 * 2 * plan.share.tokens(job) * job.model.hidden / plan.tensor
    between = plan.tensor * plan.context * plan.data >= cluster.gpus_per_node
    return software.send_share * num_bytes / (cluster.network if between else cluster.rates.links)


def reduce_seconds(
    count: float, last_backward: float, job: Job, plan: Plan, cluster: Cluster, software: Software
) -> float:
    """Data parallelism's traffic of a step that the backward does not hide.

    count: parameters of the largest stage on one rank.  last_backward: seconds of the last micro-batch's.
    ZeRO 0 all-reduces the gradients. ZeRO 1 scatters their sums and gathers the new weights, which nothing
    hides. ZeRO 2 scatters after every micro-batch, and ZeRO 3 also gathers weights twice a micro-batch.
    """
    n, stride = plan.replicas, plan.tensor
    if n == 1:
        return 0.0
    m, share = plan.micro_batches(job), (n - 1) / n
    hops = max(1.0, software.gradient_bytes * count / software.bucket_bytes) * software.hop_seconds * (n - 1)
    reduce = cluster.all_reduce_bandwidth(n, stride) * software.reduce_share
    gather = cluster.all_gather_bandwidth(n, stride) * software.gather_share
    scatter = software.gradient_bytes * count * share / reduce + hops
    weights = job.recipe.weights * count * share / gather + hops
    hidden = software.overlap * last_backward if plan.pipeline == 1 else 0.0
    if plan.zero == 0:
        return max(0.0, 2 * scatter - hidden)
    if plan.zero == 1:
        return max(0.0, scatter - hidden) + weights
    if plan.zero == 2:
        return max(0.0, m * (scatter - hidden)) + weights
    whole = software.gather_overlap * 1.5 * last_backward
    return max(0.0, m * (scatter + 2 * weights - whole))
