"""Everything in one method, with the plan asked for where it matters."""


class TensorParallelGPT(nn.Module):
    def __init__(
        self, full: Transformer, group: dist.ProcessGroup, seed: int = 0, sequence_parallel: bool = False
    ):
        super().__init__()
        self.config, self.group, self.sequence_parallel = full.config, group, sequence_parallel
        self.streams = RandomStreams(seed, group)
        self.tokens = VocabParallelEmbedding.from_embedding(
            full.tokens, group, ReduceScatterSequence.apply if sequence_parallel else sum_over_ranks
        )
        self.positions = parameter(full.positions.weight)
        self.blocks = nn.ModuleList(
            TensorParallelBlock(b, group, self.streams, sequence_parallel) for b in full.blocks
        )
        self.norm = nn.LayerNorm(full.norm.normalized_shape, full.norm.eps).to(full.norm.weight)
        self.norm.load_state_dict(full.norm.state_dict())
        if not full.config.tied_embeddings:
            self.head_weight = nn.Parameter(VocabParallelEmbedding.own_rows(full.head.weight, group))

    @classmethod
    def from_full(
        cls, full: Transformer, group: dist.ProcessGroup, seed: int = 0, sequence_parallel: bool = False
    ) -> "TensorParallelGPT":
        return cls(full, group, seed, sequence_parallel)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        s, t, rank = ids.shape[1], dist.get_world_size(self.group), dist.get_rank(self.group)
        if self.sequence_parallel and s % t:
            raise ValueError(f"a sequence of {s} tokens cannot be divided among {t} ranks")
        positions = self.positions[:s]
        scale, shift = self.norm.weight, self.norm.bias
        if self.sequence_parallel:
            positions = copy_to_ranks(self.positions, self.group)[:s].chunk(t)[rank]
            scale, shift = copy_to_ranks(scale, self.group), copy_to_ranks(shift, self.group)
        x = self.tokens(ids) + positions
        if self.training and self.config.dropout:
            with self.streams.own() if self.sequence_parallel else self.streams.shared():
                x = F.dropout(x, self.config.dropout)
        for block in self.blocks:
            x = block(x)
        x = F.layer_norm(x, self.norm.normalized_shape, scale, shift, self.norm.eps)
        head = self.tokens.weight if self.config.tied_embeddings else self.head_weight
        into = sequence_column_parallel if self.sequence_parallel else column_parallel
        return vocab_parallel_cross_entropy(
            into(x, head, None, self.group), targets, self.config.vocabulary, self.group
        )

    def to_full(self) -> dict[str, Tensor]:
        full = {f"tokens.{k}": v for k, v in self.tokens.to_full().items()}
        full["positions.weight"] = self.positions.detach()
        for number, block in enumerate(self.blocks):
            full |= {f"blocks.{number}.{k}": v for k, v in block.to_full().items()}
        full |= {f"norm.{k}": v for k, v in self.norm.state_dict().items()}
        head = self.tokens.weight if self.config.tied_embeddings else self.head_weight
        full["head.weight"] = joined(head, 0, self.group)[: self.config.vocabulary]
        return full
