"""A transformer block on the ranks of a group: heads and inner features divided, everything else whole.

Shapes: b sequences of s tokens, hidden h, a heads of d, t ranks (Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.parallel.pieces import as_parameter, block_of, joined
from labkit.parallel.streams import RandomStreams
from labkit.tensor_parallel import column_parallel, row_parallel


class TensorParallelAttention(nn.Module):
    """Causal self-attention whose heads are divided; queries, keys and values packed, one below the other."""

    def __init__(self, attention: Any, group: dist.ProcessGroup, streams: RandomStreams):
        """attention: a whole one (labkit.model), left alone. ValueError if its heads do not divide."""
        super().__init__()
        config, size = attention.config, dist.get_world_size(group)
        for what, heads in (("heads", config.num_heads), ("key-value heads", config.num_kv_heads)):
            if heads % size:
                raise ValueError(f"{heads} {what} do not divide among {size} ranks")
        self.config, self.attend, self.group, self.streams = config, attention.attend, group, streams
        self.heads = [n // size for n in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        parts = [attention.query, attention.key, attention.value]
        self.qkv_weight = nn.Parameter(torch.cat([block_of(part.weight, 0, group) for part in parts]))
        biases = [block_of(part.bias, 0, group) for part in parts if part.bias is not None]
        self.qkv_bias = nn.Parameter(torch.cat(biases)) if biases else None
        self.output_weight = nn.Parameter(block_of(attention.output.weight, 1, group))
        self.output_bias = as_parameter(attention.output.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, h] -> [b, s, h], both the same on every rank."""
        packed = column_parallel(x, self.qkv_weight, self.qkv_bias, self.group)
        heads = packed.unflatten(-1, (-1, self.config.head_size)).transpose(1, 2)
        with self.streams.own():
            out = self.attend(*heads.split(self.heads, 1), self.config.dropout if self.training else 0.0)
        return row_parallel(out.transpose(1, 2).flatten(2), self.output_weight, self.output_bias, self.group)

    def to_full(self) -> dict[str, Tensor]:
        """The state dict of the whole attention, on every rank."""
        full = {"output.weight": joined(self.output_weight, 1, self.group)}
        if self.output_bias is not None:
            full["output.bias"] = self.output_bias.detach()
        widths = [heads * self.config.head_size for heads in self.heads]
        for kind, packed in (("weight", self.qkv_weight), ("bias", self.qkv_bias)):
            if packed is not None:
                for name, part in zip(("query", "key", "value"), packed.split(widths), strict=True):
                    full[f"{name}.{kind}"] = joined(part, 0, self.group)
        return full


class TensorParallelMLP(nn.Module):
    """down(gelu(up(x))), the inner features divided."""

    def __init__(self, mlp: Any, group: dist.ProcessGroup):
        """mlp: a whole one, with nn.Linear `up` and `down`; left alone."""
        super().__init__()
        self.group = group
        self.up_weight = nn.Parameter(block_of(mlp.up.weight, 0, group))
        self.up_bias = nn.Parameter(block_of(mlp.up.bias, 0, group))
        self.down_weight = nn.Parameter(block_of(mlp.down.weight, 1, group))
        self.down_bias = as_parameter(mlp.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] -> [..., h], both the same on every rank."""
        inner = F.gelu(column_parallel(x, self.up_weight, self.up_bias, self.group))
        return row_parallel(inner, self.down_weight, self.down_bias, self.group)

    def to_full(self) -> dict[str, Tensor]:
        """The state dict of the whole MLP, on every rank."""
        assert self.down_bias is not None
        return {
            "up.weight": joined(self.up_weight, 0, self.group),
            "up.bias": joined(self.up_bias, 0, self.group),
            "down.weight": joined(self.down_weight, 1, self.group),
            "down.bias": self.down_bias.detach(),
        }


class TensorParallelBlock(nn.Module):
    """x + dropout(attention(norm(x))), then x + dropout(mlp(norm(x))), on the ranks of a group."""

    def __init__(self, block: Any, group: dist.ProcessGroup, streams: RandomStreams):
        """This rank's part of a whole block (labkit.model.Block of a GPT), which is left alone."""
        super().__init__()
        self.streams, self.dropout = streams, block.dropout.p
        self.attention_norm, self.mlp_norm = map(copy.deepcopy, (block.attention_norm, block.mlp_norm))
        self.attention = TensorParallelAttention(block.attention, group, streams)
        self.mlp = TensorParallelMLP(block.mlp, group)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, h] -> [b, s, h], both the same on every rank."""
        x = x + self._drop(self.attention(self.attention_norm(x)))
        return x + self._drop(self.mlp(self.mlp_norm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        with self.streams.shared():
            return F.dropout(x, self.dropout, self.training)

    def to_full(self) -> dict[str, Tensor]:
        """The state dict of the whole block, on every rank."""
        full: dict[str, Tensor] = {}
        for name in ("attention", "mlp"):
            full |= {f"{name}.{key}": value for key, value in getattr(self, name).to_full().items()}
            norm = getattr(self, f"{name}_norm")
            full |= {f"{name}_norm.{key}": value.detach() for key, value in norm.named_parameters()}
        return full
