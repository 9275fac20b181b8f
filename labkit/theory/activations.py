"""What backward needs from forward: the tensors a layer keeps, one by one, and what recomputation and
sharding leave.

The list follows Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1, and adds what newer layers keep
(grouped-query attention, gated MLPs, experts, fused attention). For a GPT layer in 16 bits it adds up to the
paper's sbh(34 + 5as/h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labkit.theory.models import ModelConfig

AttentionKernel = Literal["explicit", "fused"]
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Counting:
    """How tensors are counted, in bytes an element.

    element: activations.  mask: dropout masks.  logits: the float copy the loss keeps.
    eager: also the small statistics of norms and fused attention, and the normalised copy an unfused RMSNorm
    keeps.
    """

    element: int = 2
    mask: int = 1
    logits: int = 4
    eager: bool = False


PAPER = Counting()


def eager_counting(element: int, device: str = "cpu") -> Counting:
    """What PyTorch keeps in eager mode for activations of `element` bytes, to compare with a measured step.

    On a GPU a dropout mask is one byte an element; on a CPU it has the activations' own type.
    """
    return Counting(element, mask=1 if device == "cuda" else element, logits=max(4, element), eager=True)


@dataclass(frozen=True)
class Kept:
    """One kept tensor of one layer and one micro-batch, in bytes before any sharding.

    cut_by: "tensor" is split by tensor parallelism; "sequence" only where sequence parallelism is added;
    "nothing": rows of all a group's tokens, as its ranks share each expert's width.
    core: made inside attention from queries, keys and values: selective recomputation drops it.
    pieces: tensor parallelism cuts it into no more than these (keys and values: whole heads); 0 for any.
    """

    name: str
    num_bytes: float
    cut_by: Literal["tensor", "sequence", "nothing"]
    core: bool = False
    pieces: int = 0


def _norm_kept(config: ModelConfig, tokens: int, counting: Counting, name: str) -> list[Kept]:
    kept = [Kept(f"{name} input", counting.element * tokens * config.hidden, "sequence")]
    if not counting.eager:
        return kept
    if config.norm == "layernorm":
        return [*kept, Kept(f"{name} mean and deviation", 2 * counting.element * tokens, "sequence")]
    normalised = Kept(f"{name} normalised", counting.element * tokens * config.hidden, "sequence")
    return [*kept, normalised, Kept(f"{name} scale", counting.element * tokens, "sequence")]


def _attention_core_kept(
    config: ModelConfig, sequence: int, tokens: int, kernel: AttentionKernel, counting: Counting
) -> list[Kept]:
    """What lies between (queries, keys, values) and the attention output."""
    if kernel == "fused":  # FlashAttention keeps one float32 a row, the log of the softmax's denominator
        rows = 4 * config.num_heads * tokens if counting.eager else 0
        return [Kept("attention log-sum-exp", rows, "tensor", core=True)]
    scores = config.num_heads * sequence * tokens
    kept = [Kept("attention probabilities", counting.element * scores, "tensor", core=True)]
    if config.dropout:
        kept.append(Kept("attention dropout mask", counting.mask * scores, "tensor", core=True))
        kept.append(Kept("dropped probabilities", counting.element * scores, "tensor", core=True))
    return kept


def _attention_kept(
    config: ModelConfig, sequence: int, tokens: int, kernel: AttentionKernel, counting: Counting
) -> list[Kept]:
    e, h, width = counting.element, config.hidden, config.query_width
    kept = [Kept("attention input", e * tokens * h, "sequence")]
    if config.latent is None:
        keys, values, out, heads = config.kv_width, config.kv_width, width, config.num_kv_heads
    else:  # every head gets its own keys and values back from the squeezed vector, which is kept too
        latent = config.latent
        width = config.num_heads * (config.head_size + latent.rotary)
        keys, values, out = width, config.num_heads * latent.value, config.num_heads * latent.value
        heads = config.num_heads
        squeezed = latent.query_rank + latent.key_value_rank
        kept.append(Kept("squeezed queries, keys, values", 2 * e * tokens * squeezed, "sequence"))
    kept += [
        Kept("queries", e * tokens * width, "tensor"),
        Kept("keys", e * tokens * keys, "tensor", pieces=heads),
        Kept("values", e * tokens * values, "tensor", pieces=heads),
        *_attention_core_kept(config, sequence, tokens, kernel, counting),
        Kept("attention output", e * tokens * out, "tensor"),
    ]
    if config.dropout:
        kept.append(Kept("residual dropout mask (attention)", counting.mask * tokens * h, "sequence"))
    return kept


def _mlp_inner_kept(config: ModelConfig, tokens: float, width: int, e: int) -> list[Kept]:
    if not config.gated_mlp:
        names = ["GELU input", "GELU output"]
    else:
        names = ["gate (SiLU input)", "SiLU output", "up projection", "gated product"]
    return [Kept(name, e * tokens * width, "tensor") for name in names]


def _mlp_kept(config: ModelConfig, tokens: int, counting: Counting, mixture_layer: bool) -> list[Kept]:
    e, h = counting.element, config.hidden
    kept = [Kept("MLP input", e * tokens * h, "sequence")]
    if mixture_layer and config.mixture is not None:
        mixture = config.mixture
        visits = tokens * mixture.active_experts
        kept.append(Kept("router probabilities (fp32)", 4 * tokens * mixture.num_experts, "sequence"))
        kept.append(Kept("expert inputs, permuted", e * visits * h, "nothing"))  # gathered, then permuted
        kept += _mlp_inner_kept(config, visits + tokens * mixture.shared_experts, mixture.expert_ffn, e)
        kept.append(Kept("expert outputs, before weighting", e * visits * h, "sequence"))
    else:
        kept += _mlp_inner_kept(config, tokens, config.ffn, e)
    if config.dropout:
        kept.append(Kept("residual dropout mask (MLP)", counting.mask * tokens * h, "sequence"))
    return kept


def layer_kept(
    config: ModelConfig,
    sequence: int,
    micro_batch: int,
    attention: AttentionKernel = "explicit",
    counting: Counting = PAPER,
    layer: int = 0,
) -> list[Kept]:
    """Every tensor one layer keeps for its backward, before sharding and with nothing recomputed."""
    tokens = sequence * micro_batch
    return [
        *_norm_kept(config, tokens, counting, "attention norm"),
        *_attention_kept(config, sequence, tokens, attention, counting),
        *_norm_kept(config, tokens, counting, "MLP norm"),
        *_mlp_kept(config, tokens, counting, config.has_experts(layer)),
    ]


def layer_input_bytes(
    config: ModelConfig, sequence: int, micro_batch: int, counting: Counting = PAPER
) -> float:
    """2sbh: the one tensor full recomputation keeps of a layer, and what crosses between pipeline stages."""
    return counting.element * sequence * micro_batch * config.hidden


def kept_bytes(kept: list[Kept], tensor_parallel: int = 1, sequence_parallel: bool = False) -> float:
    """The bytes of those tensors on one tensor-parallel rank."""
    whole = sum(item.num_bytes for item in kept if item.cut_by == "sequence")
    cut = sum(
        item.num_bytes / min(tensor_parallel, item.pieces or tensor_parallel)
        for item in kept
        if item.cut_by == "tensor"
    )
    uncut = sum(item.num_bytes for item in kept if item.cut_by == "nothing")
    return uncut + cut + whole / (tensor_parallel if sequence_parallel else 1)


def layer_activation_bytes(
    config: ModelConfig,
    sequence: int,
    micro_batch: int,
    recompute: Recompute = "none",
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    attention: AttentionKernel = "explicit",
    counting: Counting = PAPER,
    layer: int = 0,
    shard_checkpoints: bool = False,
) -> float:
    """Bytes one layer keeps on one rank for one micro-batch (Korthikanti 2022, table 2, for a GPT layer).

    none: all of `layer_kept`. selective: without the attention core. full: the layer's input alone, whole on
    every rank unless `shard_checkpoints` (an extra all-gather; Pa in ZeRO, section 6.1).
    """
    if recompute not in ("none", "selective", "full"):
        raise ValueError(f'recompute must be "none", "selective" or "full", got {recompute!r}')
    if attention not in ("explicit", "fused"):
        raise ValueError(f'attention must be "explicit" or "fused", got {attention!r}')
    if recompute == "full":
        whole = layer_input_bytes(config, sequence, micro_batch, counting)
        return whole / tensor_parallel if shard_checkpoints else whole
    kept = layer_kept(config, sequence, micro_batch, attention, counting, layer)
    if recompute == "selective":
        kept = [item for item in kept if not item.core]
    return kept_bytes(kept, tensor_parallel, sequence_parallel)


def embedding_kept(
    config: ModelConfig, sequence: int, micro_batch: int, counting: Counting = PAPER
) -> list[Kept]:
    """First stage: the mask of the dropout after the embedding (sbh, Korthikanti 4.3)."""
    tokens = sequence * micro_batch
    kept = [Kept("token ids", 8 * tokens, "sequence")] if counting.eager else []
    if config.dropout:
        kept.append(Kept("embedding dropout mask", counting.mask * tokens * config.hidden, "sequence"))
    return kept


def head_kept(config: ModelConfig, sequence: int, micro_batch: int, counting: Counting = PAPER) -> list[Kept]:
    """Last stage: inputs of the final norm, 2sbh, and of the output matrix, 2sbh (Korthikanti 4.3)."""
    tokens = sequence * micro_batch
    kept = _norm_kept(config, tokens, counting, "final norm")
    kept.append(Kept("head input", counting.element * tokens * config.hidden, "sequence"))
    if counting.eager:
        kept.append(Kept("targets", 8 * tokens, "sequence"))
    return kept


def logits_kept(
    config: ModelConfig, sequence: int, micro_batch: int, counting: Counting = PAPER
) -> list[Kept]:
    """Last stage: the float32 logits the loss keeps, 4sbV, cut along the vocabulary (Korthikanti 4.3)."""
    return [Kept("logits", counting.logits * sequence * micro_batch * config.vocabulary, "tensor")]
