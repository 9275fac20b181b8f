"""Rows are chosen from the packed whole weight by their numbers, and put back by the same numbers."""

import torch
from torch import nn


def _rows_of(rank, size, config):
    """The rows of the whole packed weight that a rank has: its queries, keys and values."""
    rows, start = [], 0
    for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads):
        share = heads // size * config.head_size
        rows.append(torch.arange(start + rank * share, start + (rank + 1) * share))
        start += heads * config.head_size
    return torch.cat(rows)


class TensorParallelAttention(nn.Module):
    def __init__(self, config, attend, qkv, output, group, enter=column_parallel, leave=row_parallel):
        super().__init__()
        self.config, self.attend, self.group = config, attend, group
        self.enter, self.leave = enter, leave
        self.qkv_weight, self.qkv_bias = map(parameter, qkv)
        self.output_weight, self.output_bias = map(parameter, output)

    @classmethod
    def from_attention(cls, attention, group, enter=column_parallel, leave=row_parallel):
        config, size, rank = attention.config, group.size(), group.rank()
        for what, number in (("heads", config.num_heads), ("key-value heads", config.num_kv_heads)):
            if number % size != 0:
                raise ValueError(f"{number} {what} cannot be divided among {size} ranks")
        rows = _rows_of(rank, size, config).to(attention.query.weight.device)
        projections = [attention.query, attention.key, attention.value]
        weight = torch.cat([p.weight for p in projections])[rows]
        bias = None if attention.query.bias is None else torch.cat([p.bias for p in projections])[rows]
        columns = attention.output.weight.shape[1] // size
        part = attention.output.weight[:, rank * columns : (rank + 1) * columns]
        return cls(
            config, attention.attend, (weight, bias), (part, attention.output.bias), group, enter, leave
        )

    def forward(self, x):
        packed = self.enter(x, self.qkv_weight, self.qkv_bias, self.group)
        batch, tokens, _ = packed.shape
        parts = packed.split([n * self.config.head_size for n in self.own_heads()], dim=2)
        heads = [p.view(batch, tokens, -1, self.config.head_size).permute(0, 2, 1, 3) for p in parts]
        mixed = self.attend(*heads, self.config.dropout * self.training)
        mixed = mixed.permute(0, 2, 1, 3).flatten(2)
        return self.leave(mixed, self.output_weight, self.output_bias, self.group)

    def own_heads(self):
        size = self.group.size()
        return [
            self.config.num_heads // size,
            self.config.num_kv_heads // size,
            self.config.num_kv_heads // size,
        ]

    def to_full(self):
        size, config = self.group.size(), self.config
        numbers = torch.cat([_rows_of(rank, size, config) for rank in range(size)])
        widths = [n * config.head_size for n in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        full = {"output.weight": joined(self.output_weight, 1, self.group)}
        if self.output_bias is not None:
            full["output.bias"] = self.output_bias.detach().clone()
        for kind, own in (("weight", self.qkv_weight), ("bias", self.qkv_bias)):
            if own is not None:
                whole = joined(own, 0, self.group)[numbers.argsort().to(own.device)]
                for name, part in zip(("query", "key", "value"), whole.split(widths), strict=True):
                    full[f"{name}.{kind}"] = part.clone()
        return full
