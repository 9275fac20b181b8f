"""Both ends of a language model with the vocabulary's rows divided over ranks: the table, and the loss."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.parallel.pieces import joined
from labkit.tensor_parallel import sum_over_ranks


class VocabParallelEmbedding(nn.Module):
    """A table of vectors, one row a token of the vocabulary, whose rows are divided among a group's ranks."""

    def __init__(self, weight: Tensor, vocabulary: int, group: dist.ProcessGroup):
        """weight: this rank's rows, [ceil(V / t), h]."""
        super().__init__()
        self.weight, self.vocabulary, self.group = nn.Parameter(weight), vocabulary, group

    @staticmethod
    def own_rows(table: Tensor, group: dist.ProcessGroup) -> Tensor:
        """This rank's ceil(V / t) rows of `table`, [V, h], in memory of their own; zeros beyond its end."""
        rows = -(-len(table) // dist.get_world_size(group))
        own = table.new_zeros(rows, table.shape[1])
        real = table.detach()[dist.get_rank(group) * rows :][:rows]
        own[: len(real)] = real
        return own

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, group: dist.ProcessGroup) -> VocabParallelEmbedding:
        """This rank's part of a whole table."""
        return cls(cls.own_rows(embedding.weight, group), embedding.num_embeddings, group)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [b, s], the same on every rank. Their vectors, [b, s, h], on every rank."""
        own = ids - dist.get_rank(self.group) * len(self.weight)
        here = (own >= 0) & (own < len(self.weight))
        vectors = F.embedding(own.where(here, 0), self.weight)
        return sum_over_ranks(vectors.where(here.unsqueeze(-1), 0.0), self.group)

    def to_full(self) -> dict[str, Tensor]:
        """The state dict of the whole table, on every rank."""
        return {"weight": joined(self.weight, 0, self.group)[: self.vocabulary]}


def vocab_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, vocabulary: int, group: dist.ProcessGroup
) -> Tensor:
    """The mean cross-entropy of all tokens: one number, the same on every rank.

    logits: this rank's columns, [b, s, ceil(V / t)]; those beyond the vocabulary do not count. targets:
    [b, s], the same on every rank. Sends three numbers a token, in forward only.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    columns = logits.shape[-1]
    first = dist.get_rank(group) * columns
    padding = torch.arange(first, first + columns, device=logits.device) >= vocabulary
    logits = logits.masked_fill(padding, float("-inf"))
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    shifted = logits - largest.unsqueeze(-1)
    own = targets - first
    here = (own >= 0) & (own < columns)
    at_target = shifted.gather(-1, own.where(here, 0).unsqueeze(-1)).squeeze(-1).where(here, 0.0)
    parts = torch.stack([at_target, shifted.exp().sum(-1)])
    at_target, denominator = sum_over_ranks(parts, group)
    return (denominator.log() - at_target).mean()
