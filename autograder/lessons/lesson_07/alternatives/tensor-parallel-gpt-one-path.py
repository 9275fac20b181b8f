"""What differs between the two plans is chosen when the model is made; forward has one path."""

import copy
import functools

import torch.nn.functional as F
from torch import nn


class TensorParallelGPT(nn.Module):
    def __init__(self, full, group, seed=0, sequence_parallel=False):
        super().__init__()
        self.config, self.group, self.sequence_parallel = full.config, group, sequence_parallel
        self.streams = RandomStreams(seed, group)
        if sequence_parallel:
            self.learnt = functools.partial(copy_to_ranks, group=group)
            self.enter, leave, self.stream = sequence_column_parallel, ReduceScatterSequence.apply, "own"
        else:
            self.learnt = lambda whole: whole
            self.enter, leave, self.stream = column_parallel, sum_over_ranks, "shared"
        self.tokens = VocabParallelEmbedding.from_embedding(full.tokens, group, leave)
        self.positions = nn.Parameter(full.positions.weight.detach().clone())
        self.blocks = nn.ModuleList(
            TensorParallelBlock(block, group, self.streams, sequence_parallel) for block in full.blocks
        )
        self.norm = copy.deepcopy(full.norm)
        if not self.config.tied_embeddings:
            self.head_weight = nn.Parameter(VocabParallelEmbedding.own_rows(full.head.weight, group))

    @classmethod
    def from_full(cls, full, group, seed=0, sequence_parallel=False):
        return cls(full, group, seed, sequence_parallel)

    def loss(self, ids, targets):
        x = self.tokens(ids)
        all_tokens, here = ids.shape[1], x.shape[1]
        start = self.group.rank() * here if here < all_tokens else 0
        x = x + self.learnt(self.positions)[start : start + here]
        with getattr(self.streams, self.stream)():
            x = F.dropout(x, self.config.dropout, training=self.training)
        for block in self.blocks:
            x = block(x)
        weight, bias = self.learnt(self.norm.weight), self.learnt(self.norm.bias)
        x = F.layer_norm(x, self.norm.normalized_shape, weight, bias, self.norm.eps)
        logits = self.enter(x, self.head, None, self.group)
        return vocab_parallel_cross_entropy(logits, targets, self.config.vocabulary, self.group)

    @property
    def head(self):
        return self.tokens.weight if self.config.tied_embeddings else self.head_weight

    def to_full(self):
        table = self.tokens.to_full()["weight"]
        head = table if self.config.tied_embeddings else joined(self.head, 0, self.group)
        full = {"tokens.weight": table, "head.weight": head[: self.config.vocabulary]}
        full["positions.weight"] = self.positions.detach()
        full |= {f"norm.{name}": value for name, value in self.norm.state_dict().items()}
        for number, block in enumerate(self.blocks):
            full |= {f"blocks.{number}.{name}": value for name, value in block.to_full().items()}
        return full
