"""Weights are looked at as [heads, d, h]; what is whole again is read out of one join."""

import torch
import torch.distributed as dist
from torch import nn


class TensorParallelAttention(nn.Module):
    def __init__(self, config, attend, qkv, output, group, enter=column_parallel, leave=row_parallel):
        super().__init__()
        self.config, self.attend, self.group = config, attend, group
        self.enter, self.leave = enter, leave
        self.qkv_weight, self.qkv_bias = map(parameter, qkv)
        self.output_weight, self.output_bias = map(parameter, output)

    @classmethod
    def from_attention(cls, attention, group, enter=column_parallel, leave=row_parallel):
        config, t, r = attention.config, dist.get_world_size(group), dist.get_rank(group)
        if config.num_heads % t:
            raise ValueError(f"heads: {config.num_heads}, ranks: {t}; they must divide")
        if config.num_kv_heads % t:
            raise ValueError(f"key-value heads: {config.num_kv_heads}, ranks: {t}; they must divide")

        def own(tensor):
            """The rank's heads of a tensor whose first dimension is all heads' features."""
            of_heads = tensor.detach().view(-1, config.head_size, *tensor.shape[1:])
            return of_heads.tensor_split(t)[r].flatten(0, 1)

        names = ("query", "key", "value")
        weight = torch.cat([own(getattr(attention, name).weight) for name in names])
        bias = None
        if attention.query.bias is not None:
            bias = torch.cat([own(getattr(attention, name).bias) for name in names])
        out = own(attention.output.weight.T).T.contiguous()
        return cls(
            config, attention.attend, (weight, bias), (out, attention.output.bias), group, enter, leave
        )

    def forward(self, x):
        d, (queries, keys, _) = self.config.head_size, self.own_heads()
        packed = self.enter(x, self.qkv_weight, self.qkv_bias, self.group)
        heads = packed.unflatten(2, (-1, d)).transpose(1, 2)
        q, k, v = heads[:, :queries], heads[:, queries : queries + keys], heads[:, queries + keys :]
        dropped = self.config.dropout if self.training else 0.0
        out = self.attend(q, k, v, dropped)
        out = torch.cat(out.unbind(1), dim=-1)
        return self.leave(out, self.output_weight, self.output_bias, self.group)

    def own_heads(self):
        ranks = dist.get_world_size(self.group)
        keys = self.config.num_kv_heads // ranks
        return [self.config.num_heads // ranks, keys, keys]

    def to_full(self):
        d, t = self.config.head_size, dist.get_world_size(self.group)
        queries, keys, _ = self.own_heads()
        ends = {"query": (0, queries), "key": (queries, queries + keys), "value": (queries + keys, None)}
        full = {}
        for kind in ("weight", "bias"):
            own = getattr(self, f"qkv_{kind}")
            if own is None:
                continue
            everybody = joined(own, 0, self.group).view(t, -1, d, *own.shape[1:])
            for name, (start, end) in ends.items():
                full[f"{name}.{kind}"] = everybody[:, start:end].flatten(0, 2)
        full["output.weight"] = joined(self.output_weight.T, 0, self.group).T
        if self.output_bias is not None:
            full["output.bias"] = self.output_bias.detach()
        return full
