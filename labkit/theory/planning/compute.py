"""Seconds of one layer and of the head on one GPU: matrix products, everything else, and the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from labkit.theory.activations import kept_bytes, layer_kept
from labkit.theory.models import ModelConfig
from labkit.theory.planning.cluster import Cluster
from labkit.theory.planning.job import Job, Plan, Share
from labkit.theory.planning.software import Software

BACKWARD = 2  # backward's products in forwards
FORWARD_SHARE = 3  # forward moves about a third of the bytes
LOSS_BYTES = 10 + 10  # a logit's copies written and read, forward and backward


@dataclass(frozen=True)
class Work:
    """Seconds of forward and backward of one micro-batch, by what they go to; recomputation included."""

    products: float
    elementwise: float

    @property
    def total(self) -> float:
        """Both."""
        return self.products + self.elementwise


def product_seconds(rows: float, columns: float, inner: float, cluster: Cluster, software: Software) -> float:
    """One matrix product: its operations at a share of peak, and its three operands through memory once.

    The share is what software reaches on a large product. The operands make small ones slower: a roofline
    with both paid, which is the efficiency curve of the model.
    """
    operations = 2 * rows * columns * inner / (cluster.gpu.dense_bf16 * software.matmul_efficiency)
    operands = 2 * (rows * columns + columns * inner + rows * inner)
    return operations + operands / cluster.rates.memory


Product = tuple[float, float, float]
"""Rows, columns and inner size."""


def _layer_products(job: Job, share: Share, layer: int) -> list[Product]:
    """The products of a layer's weights on one rank."""
    model, tokens = job.model, share.tokens(job)
    projections = [(tokens, *shape) for shape in _projections(model, share.tensor)]
    mixture = model.mixture if model.has_experts(layer) else None
    if mixture is None:
        return projections + _mlp_products(model, tokens, model.ffn / share.tensor)
    width, local = mixture.expert_ffn / share.tensor, mixture.num_experts // share.expert
    rows = tokens * mixture.active_experts / local  # every expert is visited as often
    return [
        *projections,
        (tokens, mixture.num_experts, model.hidden),
        *_mlp_products(model, tokens, width) * mixture.shared_experts,
        *_mlp_products(model, rows, width) * local,
    ]


def _mlp_products(model: ModelConfig, rows: float, width: float) -> list[Product]:
    ups = 2 if model.gated_mlp else 1
    return [(rows, ups * width, model.hidden), (rows, model.hidden, width)]


def _projections(model: ModelConfig, t: int) -> list[tuple[float, float]]:
    """(columns, inner size) of attention's projections; squeezed ones first down, then up by heads."""
    h = model.hidden
    if model.latent is None:
        keys_values = 2 * model.kv_width / min(t, model.num_kv_heads)
        return [(model.query_width / t + keys_values, h), (h, model.query_width / t)]
    latent, heads = model.latent, model.num_heads / t
    return [
        (latent.query_rank + latent.key_value_rank + latent.rotary, h),
        (heads * (model.head_size + latent.rotary), latent.query_rank),
        (heads * (model.head_size + latent.value), latent.key_value_rank),
        (h, heads * latent.value),
    ]


def _score_seconds(job: Job, share: Share, cluster: Cluster, software: Software) -> float:
    """Queries x keys and probabilities x values, forward. A fused kernel leaves out what the mask hides."""
    model, rows = job.model, job.sequence / share.context
    seen = 0.5 if job.attention == "fused" else 1.0
    heads = share.micro_batch * model.num_heads / share.tensor
    widths = [model.head_size] * 2
    if model.latent is not None:
        widths = [model.head_size + model.latent.rotary, model.latent.value]
    return heads * seen * sum(product_seconds(rows, job.sequence, w, cluster, software) for w in widths)


@lru_cache(maxsize=65536)
def layer_work(job: Job, share: Share, cluster: Cluster, software: Software, layer: int = 0) -> Work:
    """The layer of that number. Recomputation repeats the scores (selective) or the whole forward (full)."""
    products = _layer_products(job, share, layer)
    weights = sum(product_seconds(*product, cluster, software) for product in products)
    scores = _score_seconds(job, share, cluster, software)
    kept = layer_kept(job.model, job.sequence // share.context, share.micro_batch, job.attention, layer=layer)
    inside = kept_bytes([item for item in kept if item.core], share.tensor, share.split)
    seconds = software.passes / cluster.rates.memory
    core, body = seconds * inside, seconds * kept_bytes(kept, share.tensor, share.split)
    again = {
        "none": Work(0.0, 0.0),
        "selective": Work(scores, core / FORWARD_SHARE),
        "full": Work(weights + scores, body / FORWARD_SHARE),
    }[share.recompute]
    return Work(
        products=(1 + BACKWARD) * (weights + scores) + again.products,
        elementwise=body + again.elementwise,
    )


@lru_cache(maxsize=65536)
def head_work(job: Job, share: Share, cluster: Cluster, software: Software) -> Work:
    """The output matrix and the loss."""
    tokens, columns = share.tokens(job), job.model.vocabulary / share.tensor
    product = product_seconds(tokens, columns, job.model.hidden, cluster, software)
    return Work((1 + BACKWARD) * product, LOSS_BYTES * tokens * columns / cluster.rates.memory)


def host_floor(plan: Plan, cluster: Cluster, software: Software) -> float:
    """The least seconds of a layer, forward and backward: the host's launches, and waiting in lockstep."""
    outside = max(0, plan.tensor - cluster.gpus_per_node)
    floor = software.layer_floor + software.rank_floor * outside
    if plan.pipeline > 1 and plan.tensor > 1 and plan.num_gpus > cluster.gpus_per_node:
        floor += software.spread_floor * plan.tensor
    return floor
