"""The small GPT that a plain program trains, and others train faster."""

from __future__ import annotations

import torch

from labkit.checks.case import Case
from labkit.model import Transformer, explicit_attention
from labkit.theory.models import ModelConfig, gpt

SHAPE = {"layers": 4, "hidden": 48, "heads": 4, "vocabulary": 64, "sequence": 24}


def config_of(case: Case) -> ModelConfig:
    """Without dropout, so that every plan computes the same."""
    layers, hidden, heads, vocabulary, sequence = (case.params[name] for name in SHAPE)
    return gpt(layers, hidden, heads, vocabulary, sequence, dropout=0.0, tied_embeddings=case.params["tied"])


def dtype_of(case: Case) -> torch.dtype:
    """Of the weights."""
    return {"float64": torch.float64, "float32": torch.float32}[case.params["dtype"]]


def model_of(case: Case, number: int = 0) -> Transformer:
    """The same weights everywhere; another number's are others, in so many more layers."""
    torch.manual_seed(case.seed + 11 + number)
    config = config_of(case)
    config = config.but(num_layers=config.num_layers + number)
    return Transformer(config, attend=explicit_attention).to(dtype_of(case))
