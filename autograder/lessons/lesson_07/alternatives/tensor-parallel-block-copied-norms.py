"""The norms are deep copies that are called with other parameters; what is dropped stands beside the sum."""

import copy

import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


class TensorParallelBlock(nn.Module):
    def __init__(self, block, group, streams, sequence_parallel=False):
        super().__init__()
        self.group, self.streams, self.sequence_parallel = group, streams, sequence_parallel
        self.dropout = block.dropout.p
        products = (
            (sequence_column_parallel, sequence_row_parallel)
            if sequence_parallel
            else (column_parallel, row_parallel)
        )
        self.attention_norm = copy.deepcopy(block.attention_norm)
        self.mlp_norm = copy.deepcopy(block.mlp_norm)
        self.attention = TensorParallelAttention.from_attention(block.attention, group, *products)
        self.mlp = TensorParallelMLP(block.mlp, group, *products)
        attend = self.attention.attend

        def attend_with_own_numbers(q, k, v, dropout):
            with streams.own():
                return attend(q, k, v, dropout)

        self.attention.attend = attend_with_own_numbers

    def forward(self, x):
        for part in ("attention", "mlp"):
            branch = getattr(self, part)(self.normalised(getattr(self, f"{part}_norm"), x))
            stream = self.streams.own if self.sequence_parallel else self.streams.shared
            with stream():
                x = x + F.dropout(branch, self.dropout, self.training)
        return x

    def normalised(self, norm, x):
        if not self.sequence_parallel:
            return norm(x)
        learning_together = {name: copy_to_ranks(p, self.group) for name, p in norm.named_parameters()}
        return functional_call(norm, learning_together, (x,))

    def to_full(self):
        parts = {name: getattr(self, name) for name in ("attention_norm", "mlp_norm")}
        full = {f"{name}.{key}": t for name, norm in parts.items() for key, t in norm.state_dict().items()}
        full |= {f"attention.{key}": tensor for key, tensor in self.attention.to_full().items()}
        return full | {f"mlp.{key}": tensor for key, tensor in self.mlp.to_full().items()}
