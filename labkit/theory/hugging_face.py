"""Shapes of models from Hugging Face `config.json` files. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from labkit.theory.models import LatentAttention, MixtureOfExperts, ModelConfig, gpt, llama

_TIED = ("gemma", "smollm3")  # whose configs leave the entry out where the head is the embedding


class UnknownConfig(ValueError):
    """A config.json that cannot be read as a model's shape; says what was expected and what was found."""


class LlamaShape(msgspec.Struct):
    """The entries of a Llama-like config that decide its shape."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None

    def model(self) -> ModelConfig:
        """Where an entry is missing, the default of that kind of model."""
        tied, biased = self.tie_word_embeddings, self.attention_bias
        return llama(
            self.num_hidden_layers,
            self.hidden_size,
            self.num_attention_heads,
            self.num_key_value_heads or self.num_attention_heads,
            self.intermediate_size,
            self.vocab_size,
            self.max_position_embeddings,
            head_size=self.head_dim or 0,
            tied_embeddings=self.model_type in _TIED if tied is None else tied,
            biases="qkv" if (self.model_type == "qwen2" if biased is None else biased) else "none",
        )


class MixtralShape(LlamaShape, kw_only=True):
    """Llama's entries, where every MLP is an expert of `intermediate_size`."""

    num_local_experts: int
    num_experts_per_tok: int

    def model(self) -> ModelConfig:
        """Experts in every layer, none shared."""
        mixture = MixtureOfExperts(self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)
        return super().model().but(mixture=mixture)


class DeepSeekShape(LlamaShape, kw_only=True):
    """Llama's entries, with squeezed attention, and experts after the first layers (DeepSeek-V2 and V3).

    V3's layer that predicts a second token (`num_nextn_predict_layers`) is not counted.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    n_shared_experts: int
    first_k_dense_replace: int
    moe_layer_freq: Literal[1] = 1

    def model(self) -> ModelConfig:
        """Experts in every layer from `first_k_dense_replace` on."""
        mixture = MixtureOfExperts(
            self.n_routed_experts,
            self.num_experts_per_tok,
            self.moe_intermediate_size,
            self.n_shared_experts,
            self.first_k_dense_replace,
        )
        latent = LatentAttention(self.q_lora_rank, self.kv_lora_rank, self.qk_rope_head_dim, self.v_head_dim)
        head = self.qk_nope_head_dim
        return super().model().but(head_size=head, mixture=mixture, latent=latent)


class GPT2Shape(msgspec.Struct):
    """The entries of a GPT-2 config that decide its shape."""

    n_layer: int
    n_embd: int
    n_head: int
    vocab_size: int
    n_positions: int
    n_inner: int | None = None

    def model(self) -> ModelConfig:
        """GPT-2: tied embeddings, learned positions, biases everywhere."""
        shape = self.n_layer, self.n_embd, self.n_head, self.vocab_size, self.n_positions
        return gpt(*shape, ffn=self.n_inner or 0)


class _Kind(msgspec.Struct):
    """What says how to read the rest."""

    model_type: str = "missing"
    num_local_experts: int | None = None
    num_experts: int | None = None
    n_routed_experts: int | None = None

    @property
    def experts(self) -> int:
        return self.num_local_experts or self.num_experts or self.n_routed_experts or 0


_MIXTURES: dict[str, type[LlamaShape]] = {
    "mixtral": MixtralShape,
    "deepseek_v2": DeepSeekShape,
    "deepseek_v3": DeepSeekShape,
}
_SHAPES: dict[str, type[LlamaShape] | type[GPT2Shape]] = {
    "gpt2": GPT2Shape,
    **_MIXTURES,
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "olmo", "smollm3"), LlamaShape),
}


def read_config(path: Path) -> ModelConfig:
    """The model that a config.json describes, named after the file's folder."""
    try:
        found = path.read_bytes()
    except OSError as problem:
        raise UnknownConfig(f"{path} cannot be read: {problem.strerror}") from None
    return _described(path.resolve().parent.name, lambda kind: msgspec.json.decode(found, type=kind))


def from_config(config: Mapping[str, Any], name: str = "model") -> ModelConfig:
    """The shape in a parsed config.json. UnknownConfig says which entry is missing or not understood."""
    return _described(name, lambda kind: msgspec.convert(dict(config), kind))


def _described(name: str, read: Callable[[Any], Any]) -> ModelConfig:
    try:
        kind: _Kind = read(_Kind)
        if kind.experts and kind.model_type not in _MIXTURES:
            raise UnknownConfig(
                f"{name} has {kind.experts} experts, and its model_type is {kind.model_type!r}; "
                f"with experts, known are {', '.join(_MIXTURES)}"
            )
        if kind.model_type not in _SHAPES:
            raise UnknownConfig(
                f"{name}: model_type is {kind.model_type!r}; known are {', '.join(sorted(_SHAPES))}"
            )
        shape = read(_SHAPES[kind.model_type])
    except msgspec.ValidationError as problem:
        raise UnknownConfig(f"{name}: {problem}") from None
    except msgspec.DecodeError as problem:
        raise UnknownConfig(f"the config of {name} is not JSON: {problem}") from None
    try:
        return shape.model().but(name=name)
    except ValueError as problem:  # numbers that make no model together
        raise UnknownConfig(f"{name}: {problem}") from None
