"""Floating-point operations of a training step, and how much of a GPU's peak a measured step uses.

A multiply-add is two operations. Only matrix products are counted; norms, softmax and activations are below
1%.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from labkit.theory.models import ModelConfig

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class ForwardFlops:
    """Operations of one forward pass, by part. scores: the two attention products that grow with s^2."""

    projections: float
    scores: float
    mlp: float
    head: float

    @property
    def layers(self) -> float:
        """FLOPs of all layers, without the head."""
        return self.projections + self.scores + self.mlp

    @property
    def total(self) -> float:
        """FLOPs of one forward pass."""
        return self.layers + self.head

    def as_dict(self) -> dict[str, float]:
        """Part -> FLOPs."""
        return asdict(self)


def _projection_weights(config: ModelConfig) -> int:
    """Elements of the attention matrices one token is multiplied with in one layer."""
    h = config.hidden
    if config.latent is None:
        return h * (config.query_width + 2 * config.kv_width) + config.query_width * h
    latent, a = config.latent, config.num_heads
    queries = latent.query_rank * (h + a * (config.head_size + latent.rotary))
    keys_values = h * (latent.key_value_rank + latent.rotary)
    keys_values += latent.key_value_rank * a * (config.head_size + latent.value)
    return queries + keys_values + a * latent.value * h


def _score_width(config: ModelConfig) -> int:
    """Summed widths of the two score products: queries x keys, probabilities x values."""
    if config.latent is None:
        return 2 * config.query_width
    return config.num_heads * (config.head_size + config.latent.rotary + config.latent.value)


def _mlp_matrix_weights(config: ModelConfig, layer: int) -> int:
    """Elements of the MLP (or active expert and router) matrices one token is multiplied with."""
    matrices = 3 if config.gated_mlp else 2
    if not config.has_experts(layer):
        return matrices * config.hidden * config.ffn
    mixture = config.mixture
    assert mixture is not None
    experts = mixture.active_experts + mixture.shared_experts
    return matrices * config.hidden * mixture.expert_ffn * experts + config.hidden * mixture.num_experts


def forward_flops(config: ModelConfig, sequence: int, batch: int = 1, causal: bool = False) -> ForwardFlops:
    """One forward of `batch` sequences of `sequence` tokens.

    causal=False counts all s^2 scores, as Narayanan SC21, Korthikanti 2022 and PaLM do; causal=True half of
    them, as current Megatron-LM does. For a GPT: 24Bsh^2 + 4Bs^2h a layer and 2BshV for the head (SC21,
    appendix).
    """
    tokens = batch * sequence
    scores = 2 * tokens * sequence * _score_width(config) * config.num_layers
    mlp = sum(_mlp_matrix_weights(config, layer) for layer in range(config.num_layers))
    return ForwardFlops(
        projections=2 * tokens * _projection_weights(config) * config.num_layers,
        scores=scores / 2 if causal else scores,
        mlp=2 * tokens * mlp,
        head=2 * tokens * config.hidden * config.vocabulary,
    )


def recomputed_flops(
    config: ModelConfig, sequence: int, batch: int, recompute: Recompute, causal: bool = False
) -> float:
    """Operations done a second time: nothing, the two score products, or every layer's forward (never the
    head).
    """
    forward = forward_flops(config, sequence, batch, causal)
    parts = {"none": 0.0, "selective": forward.scores, "full": forward.layers}
    if recompute not in parts:
        raise ValueError(f"recompute must be one of {', '.join(parts)}, got {recompute!r}")
    return parts[recompute]


def train_step_flops(
    config: ModelConfig, sequence: int, batch: int, recompute: Recompute = "none", causal: bool = False
) -> float:
    """One forward, a backward that costs two, and what is recomputed.

    With recompute="none" these are model FLOPs, whatever really ran; otherwise hardware FLOPs.
    """
    once = forward_flops(config, sequence, batch, causal).total
    return 3 * once + recomputed_flops(config, sequence, batch, recompute, causal)


def six_n_flops(num_params: float, num_tokens: float) -> float:
    """6ND: two operations a parameter forward, four backward. Leaves attention's s^2 out (Kaplan 2020,
    section 2.1).
    """
    return 6 * num_params * num_tokens


def palm_flops(num_params: float, num_tokens: float, num_layers: int, hidden: int, sequence: int) -> float:
    """(6N + 12Lhs) D: with attention, all of s^2 (PaLM, arXiv 2204.02311, appendix B; nanoGPT; picotron)."""
    return (6 * num_params + 12 * num_layers * hidden * sequence) * num_tokens


def narayanan_flops(num_layers: int, hidden: int, vocabulary: int, sequence: int, batch: int) -> float:
    """F = 96BsLh^2 (1 + s/(6h) + V/(16Lh)), with full recomputation (Narayanan SC21, equation 3)."""
    h, layers, s = hidden, num_layers, sequence
    return 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))


def korthikanti_model_flops(
    num_layers: int, hidden: int, vocabulary: int, sequence: int, batch: int
) -> float:
    """72BLsh^2 (1 + s/(6h) + V/(12hL)), model FLOPs (Korthikanti 2022, equation 7)."""
    h, layers, s = hidden, num_layers, sequence
    return 72 * batch * layers * s * h**2 * (1 + s / (6 * h) + vocabulary / (12 * h * layers))


def korthikanti_hardware_flops(
    num_layers: int, hidden: int, vocabulary: int, sequence: int, batch: int
) -> float:
    """Equation 8 of Korthikanti 2022 as printed, with s/(3h).

    The text of its appendix A recomputes one forward of the scores, 4Bs^2h, which makes the term 2s/(9h), as
    `train_step_flops(..., "selective")` counts. The paper's table 5 uses the printed form.
    """
    h, layers, s = hidden, num_layers, sequence
    return 72 * batch * layers * s * h**2 * (1 + s / (3 * h) + vocabulary / (12 * h * layers))


def training_seconds(num_params: float, num_tokens: float, num_gpus: int, flops_per_gpu: float) -> float:
    """8TP/(nX), with full recomputation (Narayanan SC21, equation 4)."""
    return 8 * num_tokens * num_params / (num_gpus * flops_per_gpu)


def utilization(flops: float, seconds: float, num_gpus: int, peak_flops: float) -> float:
    """flops / (seconds x n x peak): MFU for model FLOPs, HFU for hardware FLOPs. peak_flops: dense, of one
    GPU.
    """
    if seconds <= 0 or num_gpus < 1 or peak_flops <= 0:
        raise ValueError(
            f"need seconds > 0, num_gpus >= 1, peak > 0; got {seconds}, {num_gpus}, {peak_flops}"
        )
    return flops / (seconds * num_gpus * peak_flops)


def utilization_from_rate(
    flops_per_token: float, tokens_per_second: float, num_gpus: int, peak_flops: float
) -> float:
    """The same from the rate of the whole job, in tokens a second over all GPUs."""
    return utilization(flops_per_token * tokens_per_second, 1.0, num_gpus, peak_flops)
