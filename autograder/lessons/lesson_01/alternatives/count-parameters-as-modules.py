"""The matrices are made, of a device without memory, and counted, each storage once."""

import torch
from torch import nn

from labkit.model import ModelConfig


def _matrices(config: ModelConfig) -> nn.ModuleDict:
    h, q, kv = config.hidden, config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    norm = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}[config.norm]

    def layer() -> nn.ModuleDict:
        attention = {
            name: nn.Linear(h, width, config.biases != "none")
            for name, width in (("q", q), ("k", kv), ("v", kv))
        }
        names = ["gate", "up"] if config.gated_mlp else ["up"]
        mlp = {name: nn.Linear(h, config.ffn, config.biases == "all") for name in names}
        rest = {
            "o": nn.Linear(q, h, config.biases == "all"),
            "down": nn.Linear(config.ffn, h, config.biases == "all"),
        }
        return nn.ModuleDict(attention | mlp | rest | {"norm1": norm(h), "norm2": norm(h)})

    whole = {
        "tokens": nn.Embedding(config.vocabulary, h),
        "norm": norm(h),
        "head": nn.Linear(h, config.vocabulary, bias=False),
    }
    if config.positions == "learned":
        whole["positions"] = nn.Embedding(config.max_sequence, h)
    if config.tied_embeddings:
        whole["head"].weight = whole["tokens"].weight
    return nn.ModuleDict(whole | {"layers": nn.ModuleList(layer() for _ in range(config.num_layers))})


def count_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in _matrices(config).parameters())
