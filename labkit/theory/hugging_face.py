"""Shapes of models from Hugging Face `config.json` files. Nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.theory.models import ModelConfig, gpt, llama

_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "olmo", "olmo2", "smollm3")
_GPT_LIKE = ("gpt2",)
_HAS_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


class UnknownConfig(ValueError):
    """A config.json that cannot be read as a model's shape; says what was expected and what was found."""


def read_config(path: Path) -> ModelConfig:
    """The model that a config.json describes, named after the file's folder."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UnknownConfig(f"{path} cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise UnknownConfig(f"{path} is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise UnknownConfig(f"{path} holds {type(found).__name__}; a config.json holds one object")
    name = found.get("_name_or_path") or path.resolve().parent.name
    return from_config(found, str(name))


def from_config(config: Mapping[str, Any], name: str = "model") -> ModelConfig:
    """The shape in a parsed config.json. UnknownConfig says which entry is missing or not understood."""
    kind = config.get("model_type")
    experts = [field for field in _HAS_EXPERTS if config.get(field)]
    if experts:
        raise UnknownConfig(f"{name} has experts ({experts[0]}), and plans for experts are not searched yet")
    try:
        if kind in _GPT_LIKE:
            return _gpt(config).but(name=name)
        if kind in _LLAMA_LIKE:
            return _llama(config).but(name=name)
    except KeyError as missing:
        raise UnknownConfig(f"{name}: a {kind} config needs {missing}, and this one has none") from None
    raise UnknownConfig(
        f"{name}: model_type is {kind!r}; known are {', '.join(sorted(_LLAMA_LIKE + _GPT_LIKE))}"
    )


def _llama(config: Mapping[str, Any]) -> ModelConfig:
    heads = config["num_attention_heads"]
    biased = config.get("attention_bias", config["model_type"] == "qwen2")
    return llama(
        config["num_hidden_layers"],
        config["hidden_size"],
        heads,
        config.get("num_key_value_heads") or heads,
        config["intermediate_size"],
        config["vocab_size"],
        config.get("max_position_embeddings", 8192),
        head_size=config.get("head_dim") or 0,
        tied_embeddings=config.get("tie_word_embeddings", config["model_type"] == "gemma"),
        biases="qkv" if biased else "none",
    )


def _gpt(config: Mapping[str, Any]) -> ModelConfig:
    return gpt(
        config["n_layer"],
        config["n_embd"],
        config["n_head"],
        config["vocab_size"],
        config["n_positions"],
        ffn=config.get("n_inner") or 0,
    )
