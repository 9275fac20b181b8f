"""The shape of a transformer: one dataclass that the theory counts with and `labkit.model` builds.

Two families. GPT: LayerNorm, biases, learned positions, a GELU MLP four times as wide, tied embeddings
(Radford 2019). Llama: RMSNorm, no biases, rotary positions, grouped-query attention, a gated (SwiGLU) MLP,
untied embeddings (Touvron 2023). Everything in between is the same dataclass with other fields.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

Biases = Literal["all", "qkv", "none"]
Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["learned", "rotary"]


@dataclass(frozen=True)
class MixtureOfExperts:
    """Some MLPs replaced by `num_experts` smaller ones, of which each token visits `active_experts`.

    expert_ffn: width of one expert. shared_experts: experts of that width that every token visits.
    dense_layers: the first layers, which keep one MLP of the model's own `ffn`.
    """

    num_experts: int
    active_experts: int
    expert_ffn: int
    shared_experts: int = 0
    dense_layers: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.active_experts <= self.num_experts:
            raise ValueError(f"active_experts must be 1..{self.num_experts}, got {self.active_experts}")


@dataclass(frozen=True)
class LatentAttention:
    """Keys and values squeezed through a small vector a token (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    query_rank, key_value_rank: widths of the squeezed query and key-value vectors. rotary: extra width of
    queries and of the one key shared by all heads that carries the position. value: width of one head's
    value.
    """

    query_rank: int
    key_value_rank: int
    rotary: int
    value: int


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder-only transformer. Symbols of the course: L, h, a, V, s.

    num_layers: L.  hidden: h.  num_heads: a, query heads.  vocabulary: V.  max_sequence: longest s.
    num_kv_heads: key and value heads (default a).  head_size: default h / a.  ffn: width of the MLP (default
    4h). gated_mlp: three matrices (SwiGLU) instead of two.  biases: "all" (GPT), "qkv" (Qwen) or "none"
    (Llama). tied_embeddings: the output head is the input embedding.  dropout: probability, in all three
    places of GPT-2.
    """

    num_layers: int
    hidden: int
    num_heads: int
    vocabulary: int
    max_sequence: int
    num_kv_heads: int = 0
    head_size: int = 0
    ffn: int = 0
    gated_mlp: bool = False
    biases: Biases = "all"
    norm: Norm = "layernorm"
    positions: Positions = "learned"
    tied_embeddings: bool = True
    dropout: float = 0.0
    mixture: MixtureOfExperts | None = None
    latent: LatentAttention | None = None
    name: str = "model"

    def __post_init__(self) -> None:
        for field in ("num_layers", "hidden", "num_heads", "vocabulary", "max_sequence"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        for field in ("num_kv_heads", "head_size", "ffn"):
            if getattr(self, field) < 0:
                raise ValueError(
                    f"{field} must be at least 1, or 0 for its default, got {getattr(self, field)}"
                )
        for field, known in (
            ("biases", ("all", "qkv", "none")),
            ("norm", ("layernorm", "rmsnorm")),
            ("positions", ("learned", "rotary")),
        ):
            if getattr(self, field) not in known:
                raise ValueError(f"{field} must be one of {', '.join(known)}, got {getattr(self, field)!r}")
        if not self.head_size and self.hidden % self.num_heads:
            raise ValueError(
                f"hidden {self.hidden} is not a multiple of num_heads {self.num_heads}: "
                f"change one of them, or give head_size"
            )
        derived = {
            "num_kv_heads": self.num_kv_heads or self.num_heads,
            "head_size": self.head_size or self.hidden // self.num_heads,
            "ffn": self.ffn or 4 * self.hidden,
        }
        for field, value in derived.items():
            object.__setattr__(self, field, value)  # the one write to a frozen instance: its own defaults
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}: "
                f"each key-value head serves the same number of query heads"
            )

    @property
    def query_width(self) -> int:
        """Columns of the query projection: heads x head size (h, unless head_size says otherwise)."""
        return self.num_heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.num_kv_heads * self.head_size

    def has_experts(self, layer: int) -> bool:
        """Whether layer number `layer` (from 0) has experts instead of one MLP."""
        return self.mixture is not None and layer >= self.mixture.dense_layers

    def but(self, **changes: Any) -> ModelConfig:
        """The same model with some fields changed."""
        return replace(self, **changes)


def gpt(
    num_layers: int,
    hidden: int,
    num_heads: int,
    vocabulary: int = 51_200,
    max_sequence: int = 2048,
    **more: Any,
) -> ModelConfig:
    """A GPT-style shape. The defaults are those of the Megatron papers: V = 51,200, s = 2048, dropout 0.1."""
    return ModelConfig(num_layers, hidden, num_heads, vocabulary, max_sequence, **{"dropout": 0.1, **more})


def llama(
    num_layers: int,
    hidden: int,
    num_heads: int,
    num_kv_heads: int,
    ffn: int,
    vocabulary: int = 128_256,
    max_sequence: int = 8192,
    **more: Any,
) -> ModelConfig:
    """A Llama-style shape: RMSNorm, rotary, grouped-query attention, SwiGLU, no biases, untied."""
    style: dict[str, Any] = {
        "gated_mlp": True,
        "biases": "none",
        "norm": "rmsnorm",
        "positions": "rotary",
        "tied_embeddings": False,
    }
    return ModelConfig(
        num_layers,
        hidden,
        num_heads,
        vocabulary,
        max_sequence,
        num_kv_heads=num_kv_heads,
        ffn=ffn,
        **{**style, **more},
    )


def _presets() -> dict[str, ModelConfig]:
    deepseek_experts = MixtureOfExperts(160, 6, 1536, shared_experts=2, dense_layers=1)
    deepseek_latent = LatentAttention(query_rank=1536, key_value_rank=512, rotary=64, value=128)
    deepseek_v3_experts = MixtureOfExperts(256, 8, 2048, shared_experts=1, dense_layers=3)
    mixtral_experts = MixtureOfExperts(8, 2, 14_336)
    large_mixtral_experts = MixtureOfExperts(8, 2, 16_384)
    gpt2: dict[str, Any] = {"vocabulary": 50_257, "max_sequence": 1024}
    shapes = {
        # Radford 2019, table 2 (sizes as released: 124M and 1.56B)
        "GPT-2 124M": gpt(12, 768, 12, **gpt2),
        "GPT-2 1.5B": gpt(48, 1600, 25, **gpt2),
        # Brown 2020, table 2.1
        "GPT-3 175B": gpt(96, 12_288, 96, vocabulary=50_257),
        # Touvron 2023b; Llama team 2024 (arXiv 2407.21783), table 3; model cards of Llama 3.2
        "Llama 2 7B": llama(32, 4096, 32, 32, 11_008, 32_000, 4096),
        "Llama 3.2 1B": llama(16, 2048, 32, 8, 8192, tied_embeddings=True),
        "Llama 3.2 3B": llama(28, 3072, 24, 8, 8192, tied_embeddings=True),
        "Llama 3 8B": llama(32, 4096, 32, 8, 14_336),
        "Llama 3 70B": llama(80, 8192, 64, 8, 28_672),
        "Llama 3 405B": llama(126, 16_384, 128, 8, 53_248),
        # Jiang 2024 (arXiv 2401.04088), table 1
        "Mixtral 8x7B": llama(32, 4096, 32, 8, 14_336, 32_000, mixture=mixtral_experts),
        # Mistral AI 2024, config.json of Mixtral-8x22B-v0.1
        "Mixtral 8x22B": llama(56, 6144, 48, 8, 16_384, 32_000, 65_536, mixture=large_mixtral_experts),
        # DeepSeek-AI 2024 (arXiv 2405.04434), section 3.1.2
        "DeepSeek-V2 236B": llama(
            60,
            5120,
            128,
            128,
            12_288,
            102_400,
            head_size=128,
            mixture=deepseek_experts,
            latent=deepseek_latent,
        ),
        # DeepSeek-AI 2024 (arXiv 2412.19437), section 4.2
        "DeepSeek-V3 671B": llama(
            61,
            7168,
            128,
            128,
            18_432,
            129_280,
            head_size=128,
            mixture=deepseek_v3_experts,
            latent=deepseek_latent,
        ),
    }
    return {name: shape.but(name=name) for name, shape in shapes.items()}


PRESETS: dict[str, ModelConfig] = _presets()


def preset(name: str) -> ModelConfig:
    """A published model by name; the error lists the names there are."""
    if name not in PRESETS:
        raise KeyError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
