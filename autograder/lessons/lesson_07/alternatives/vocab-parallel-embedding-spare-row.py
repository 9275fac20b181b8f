"""Foreign ids look up a row of zeros that is put below the rank's own for the look-up."""

import torch
import torch.nn.functional as F
from torch import nn


class VocabParallelEmbedding(nn.Module):
    def __init__(self, weight, vocabulary, group, leave=sum_over_ranks):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.vocabulary, self.group, self.leave = vocabulary, group, leave

    @staticmethod
    def own_rows(table, group):
        padded = F.pad(table.detach(), (0, 0, 0, -len(table) % group.size()))
        return padded.reshape(group.size(), -1, table.shape[1])[group.rank()].clone()

    @classmethod
    def from_embedding(cls, embedding, group, leave=sum_over_ranks):
        return cls(cls.own_rows(embedding.weight, group), embedding.num_embeddings, group, leave)

    def forward(self, ids):
        if ids.numel() and not 0 <= ids.min() <= ids.max() < self.vocabulary:
            raise IndexError(f"ids from {ids.min()} to {ids.max()}; the vocabulary has {self.vocabulary}")
        rows = len(self.weight)
        owner = ids.div(rows, rounding_mode="floor")
        own = torch.where(owner == self.group.rank(), ids % rows, rows)
        table = torch.cat((self.weight, self.weight.new_zeros(1, self.weight.shape[1])))
        return self.leave(F.embedding(own, table), self.group)

    def to_full(self):
        return {"weight": joined(self.weight, 0, self.group)[: self.vocabulary]}
