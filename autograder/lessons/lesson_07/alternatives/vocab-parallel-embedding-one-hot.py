"""Rows are picked by a product with ones and zeros."""

import torch
import torch.distributed as dist
from torch import nn


class VocabParallelEmbedding(nn.Module):
    def __init__(self, weight, vocabulary, group, leave=None):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.vocabulary, self.group = vocabulary, group
        self.leave = sum_over_ranks if leave is None else leave

    @staticmethod
    def own_rows(table, group):
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        each = (table.size(0) + size - 1) // size
        first = min(rank * each, table.size(0))
        own = torch.zeros(each, table.size(1), dtype=table.dtype, device=table.device)
        part = table.detach()[first : first + each]
        own[: part.size(0)].copy_(part)
        return own

    @classmethod
    def from_embedding(cls, embedding, group, leave=None):
        return cls(cls.own_rows(embedding.weight, group), embedding.num_embeddings, group, leave)

    def forward(self, ids):
        outside = (ids < 0) | (ids >= self.vocabulary)
        if bool(outside.any()):
            raise IndexError(f"{ids[outside][0].item()} is not below {self.vocabulary}")
        first = dist.get_rank(self.group) * self.weight.size(0)
        rows = torch.arange(first, first + self.weight.size(0), device=ids.device)
        picks = (ids.unsqueeze(-1) == rows).to(self.weight.dtype)
        return self.leave(picks @ self.weight, self.group)

    def to_full(self):
        return {"weight": joined(self.weight, 0, self.group)[: self.vocabulary].clone()}
