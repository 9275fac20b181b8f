"""Masks drawn as uniform numbers; the two parameters of a norm go through f together."""

import torch
from torch import nn


class TensorParallelBlock(nn.Module):
    def __init__(self, block, group, streams, sequence_parallel=False):
        super().__init__()
        self.group, self.streams, self.sequence_parallel = group, streams, sequence_parallel
        self.dropout = block.dropout.p
        for name in ("attention_norm", "mlp_norm"):
            like = getattr(block, name)
            norm = nn.LayerNorm(like.normalized_shape, like.eps).to(like.weight)
            norm.load_state_dict(like.state_dict())
            setattr(self, name, norm)
        enter = sequence_column_parallel if sequence_parallel else column_parallel
        leave = sequence_row_parallel if sequence_parallel else row_parallel
        self.mlp = TensorParallelMLP(block.mlp, group, enter, leave)
        attention = TensorParallelAttention.from_attention(block.attention, group, enter=enter, leave=leave)
        self.attention, self.plain_attend = attention, attention.attend
        attention.attend = self.attend

    def attend(self, *arguments):
        with self.streams.own():
            return self.plain_attend(*arguments)

    def forward(self, x):
        x = x + self.dropped(self.attention(self.norm_of(x, self.attention_norm)))
        return x + self.dropped(self.mlp(self.norm_of(x, self.mlp_norm)))

    def norm_of(self, x, norm):
        weight, bias = norm.weight, norm.bias
        if self.sequence_parallel:
            weight, bias = copy_to_ranks(torch.stack((weight, bias)), self.group)
        return torch.nn.functional.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)

    def dropped(self, x):
        if not self.training or self.dropout == 0:
            return x
        with self.streams.own() if self.sequence_parallel else self.streams.shared():
            kept = torch.rand(x.shape, device=x.device) >= self.dropout
        return torch.where(kept, x / (1 - self.dropout), 0.0)

    def to_full(self):
        full = {}
        for name, module in self.named_children():
            state = module.to_full() if hasattr(module, "to_full") else module.state_dict()
            full.update({f"{name}.{key}": value.detach() for key, value in state.items()})
        return full
