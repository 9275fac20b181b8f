"""A method a step; the head is what it is built from, a weight by its name."""

import torch
from torch import nn


class TensorParallelGPT(nn.Module):
    def __init__(self, full, group, seed=0, sequence_parallel=False):
        super().__init__()
        self.config, self.group, self.sequence_parallel = full.config, group, sequence_parallel
        self.streams = RandomStreams(seed, group)
        leave = sum_over_ranks
        if sequence_parallel:
            leave = ReduceScatterSequence.apply
        self.tokens = VocabParallelEmbedding.from_embedding(full.tokens, group, leave=leave)
        self.head_name = "tokens.weight"
        if not full.config.tied_embeddings:
            self.head_name = "head_weight"
            self.head_weight = nn.Parameter(self.tokens.own_rows(full.head.weight, group))
        self.positions = parameter(full.positions.weight)
        self.norm = nn.LayerNorm(full.config.hidden, eps=full.norm.eps, dtype=full.norm.weight.dtype)
        self.norm.to(full.norm.weight.device).load_state_dict(full.norm.state_dict())
        self.blocks = nn.ModuleList()
        for block in full.blocks:
            self.blocks.append(TensorParallelBlock(block, group, self.streams, sequence_parallel))

    from_full = classmethod(lambda cls, *arguments, **named: cls(*arguments, **named))

    def loss(self, ids, targets):
        x = self.embedded(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.logits(x)
        return vocab_parallel_cross_entropy(logits, targets, self.config.vocabulary, self.group)

    def embedded(self, ids):
        x, positions = self.tokens(ids), self.positions[: ids.shape[1]]
        if self.sequence_parallel:
            positions = copy_to_ranks(positions, self.group).chunk(self.group.size())[self.group.rank()]
        x = x + positions
        with self.streams.own() if self.sequence_parallel else self.streams.shared():
            return torch.dropout(x, self.config.dropout, self.training)

    def logits(self, x):
        head = self.get_parameter(self.head_name)
        if not self.sequence_parallel:
            return column_parallel(self.norm(x), head, None, self.group)
        together = {n: copy_to_ranks(p, self.group) for n, p in self.norm.named_parameters()}
        x = torch.func.functional_call(self.norm, together, (x,))
        return sequence_column_parallel(x, head, None, self.group)

    def to_full(self):
        full = {f"tokens.{name}": value for name, value in self.tokens.to_full().items()}
        full["head.weight"] = joined(self.get_parameter(self.head_name), 0, self.group)[
            : self.config.vocabulary
        ]
        full["positions.weight"] = self.positions.detach().clone()
        full["norm.weight"], full["norm.bias"] = self.norm.weight.detach(), self.norm.bias.detach()
        for index, block in enumerate(self.blocks):
            for name, value in block.to_full().items():
                full[f"blocks.{index}.{name}"] = value
        return full
