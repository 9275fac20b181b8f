"""Seconds that GPUs spend sending: tensor, context, pipeline and data parallelism."""

from __future__ import annotations

from functools import lru_cache

from labkit.theory.experts import dispatch_sent
from labkit.theory.planning.cluster import Cluster
from labkit.theory.planning.job import Job, Plan, Share
from labkit.theory.planning.software import Software


@lru_cache(maxsize=65536)
def tensor_seconds(job: Job, share: Share, cluster: Cluster, software: Software, layer: int = 0) -> float:
    """Tensor parallelism's traffic of one layer, forward and backward of a micro-batch.

    Two all-reduces each way (SC21, section 3.2), or as many pairs of all-gather and reduce-scatter: 8 times
    the layer's input. Full recomputation repeats the forward's; backward may gather inputs anew. Each is
    counted whole, not (t-1)/t of it: what a rank does not receive it still copies into the whole tensor.
    Half of it is the MLP's; experts gather the rows that visit them, k a token, and the tokens themselves if
    some experts are shared.
    """
    t = share.tensor
    if t == 1:
        return 0.0
    mixture = job.model.mixture if job.model.has_experts(layer) else None
    inputs = 1 + (mixture.active_experts + bool(mixture.shared_experts) if mixture else 1)
    times = 4 + (2 if share.recompute == "full" else 0)
    times = inputs * (times + (1 if software.regathers and share.split else 0))
    num_bytes = times * 2 * share.tokens(job) * job.model.hidden
    inside = t <= cluster.gpus_per_node
    part = software.link_share if inside else software.between_share
    return num_bytes / (cluster.all_gather_bandwidth(t, 1) * part)


def dispatch_seconds(job: Job, plan: Plan, cluster: Cluster, layer: int) -> float:
    """Rows to the experts of one layer and back, forward and backward of a micro-batch; nothing hides it.

    Rows for the ranks of a GPU's own node go over its links, the others over its share of the network, which
    with a shared fabric is slower on many nodes, as gathering is. Assumed, not measured.
    """
    if plan.expert == 1 or not job.model.has_experts(layer):
        return 0.0
    tokens = plan.share.tokens(job) / (plan.tensor if plan.share.split else 1)
    sent = dispatch_sent(job.model, tokens, plan.expert)
    forwards = 2 if plan.recompute == "full" else 1
    each = (forwards * sent.forward + sent.backward) / (plan.expert - 1)
    inside = min(plan.expert, max(1, cluster.gpus_per_node // plan.tensor))
    links = cluster.all_gather_bandwidth(inside, plan.tensor) if inside > 1 else cluster.rates.links
    outside = each * (plan.expert - inside) / cluster.exchange_bandwidth(plan.expert, plan.tensor)
    return each * (inside - 1) / links + outside


def context_seconds(job: Job, plan: Plan, cluster: Cluster, hidden_by: float) -> float:
    """Context parallelism's traffic of one layer that its attention does not hide.

    Keys and values go round the ring in forward and backward, and their gradients once: three times
    2 x 2 bytes a key-value column. Full recomputation repeats the forward's.
    """
    c = plan.context
    if c == 1:
        return 0.0
    heads = min(plan.tensor, job.model.num_kv_heads)
    once = 4 * plan.share.tokens(job) * job.model.kv_width / heads * (c - 1)
    times = 4 if plan.recompute == "full" else 3
    return max(0.0, times * once / cluster.all_gather_bandwidth(c, plan.tensor) - hidden_by)


def send_seconds(job: Job, plan: Plan, cluster: Cluster, software: Software) -> float:
    """One micro-batch over one boundary of the pipeline, both ways, as far as nothing hides it."""
    if plan.pipeline == 1:
        return 0.0
    num_bytes = 2 * 2 * plan.share.tokens(job) * job.model.hidden / plan.tensor
    between = plan.tensor * plan.context * plan.data >= cluster.gpus_per_node
    return software.send_share * num_bytes / (cluster.network if between else cluster.rates.links)


def reduce_seconds(
    count: float,
    last_backward: float,
    job: Job,
    plan: Plan,
    cluster: Cluster,
    software: Software,
    routed: float = 0.0,
) -> float:
    """Data parallelism's traffic of a step that the backward does not hide.

    count: parameters of the largest stage on one rank.  routed: those of them that belong to experts, which
    fewer ranks hold.  last_backward: seconds of the last micro-batch's.
    ZeRO 0 all-reduces the gradients. ZeRO 1 scatters their sums and gathers the new weights, which nothing
    hides. ZeRO 2 scatters after every micro-batch, and ZeRO 3 also gathers weights twice a micro-batch.
    """
    if plan.replicas == 1:
        return 0.0
    m, e = plan.micro_batches(job), plan.expert
    groups = ((count - routed, plan.replicas, plan.tensor), (routed, plan.replicas // e, plan.tensor * e))
    halves = [_halves(*group, job, cluster, software) for group in groups]
    scatter, weights = (sum(half) for half in zip(*halves, strict=True))
    hidden = software.overlap * last_backward if plan.pipeline == 1 else 0.0
    if plan.zero == 0:
        return max(0.0, 2 * scatter - hidden)
    if plan.zero == 1:
        return max(0.0, scatter - hidden) + weights
    if plan.zero == 2:
        return max(0.0, m * (scatter - hidden)) + weights
    whole = software.gather_overlap * 1.5 * last_backward
    return max(0.0, m * (scatter + 2 * weights - whole), m * (scatter - hidden))  # sums are as in ZeRO 2


def _halves(
    count: float, n: int, stride: int, job: Job, cluster: Cluster, software: Software
) -> tuple[float, float]:
    """Seconds in which n ranks, each `stride` from the next, scatter gradients' sums, and gather weights."""
    if n == 1 or not count:
        return 0.0, 0.0
    share = (n - 1) / n
    hops = max(1.0, software.gradient_bytes * count / software.bucket_bytes) * software.hop_seconds * (n - 1)
    reduce = cluster.all_reduce_bandwidth(n, stride) * software.reduce_share
    gather = cluster.all_gather_bandwidth(n, stride) * software.gather_share
    scatter = software.gradient_bytes * count * share / reduce + hops
    return scatter, job.recipe.weights * count * share / gather + hops
