"""The final norm is called with other parameters, positions are looked up, x enters the head by itself."""

from collections import OrderedDict


class TensorParallelGPT(nn.Module):
    def __init__(
        self, full: Transformer, group: dist.ProcessGroup, seed: int = 0, sequence_parallel: bool = False
    ):
        super().__init__()
        self.config, self.group, self.sequence_parallel = full.config, group, sequence_parallel
        self.streams = RandomStreams(seed, group)

        def scatter(partial: Tensor, group: dist.ProcessGroup) -> Tensor:
            return ReduceScatterSequence.apply(partial, group)

        leave = scatter if sequence_parallel else sum_over_ranks
        self.tokens = VocabParallelEmbedding.from_embedding(full.tokens, group, leave)
        self.register_parameter("positions", parameter(full.positions.weight))
        self.drop = nn.Dropout(self.config.dropout)
        self.blocks = nn.ModuleList()
        for block in full.blocks:
            self.blocks.append(TensorParallelBlock(block, group, self.streams, sequence_parallel))
        self.norm = nn.LayerNorm(self.config.hidden, full.norm.eps).to(full.norm.weight)
        self.norm.load_state_dict(full.norm.state_dict())
        tied = full.head.weight is full.tokens.weight
        rows = None if tied else VocabParallelEmbedding.own_rows(full.head.weight, group)
        self.head_weight = None if rows is None else nn.Parameter(rows)

    @classmethod
    def from_full(
        cls, full: Transformer, group: dist.ProcessGroup, seed: int = 0, sequence_parallel: bool = False
    ) -> "TensorParallelGPT":
        return cls(full, group, seed, sequence_parallel)

    def _own(self, length: int, device: torch.device) -> Tensor:
        """Positions of the tokens that this rank has."""
        size = dist.get_world_size(self.group) if self.sequence_parallel else 1
        if length % size:
            raise ValueError(f"{length} tokens, {size} ranks: they do not divide")
        own = length // size
        first = dist.get_rank(self.group) * own if self.sequence_parallel else 0
        return torch.arange(first, first + own, device=device)

    def _shared(self, weight: Tensor) -> Tensor:
        return copy_to_ranks(weight, self.group) if self.sequence_parallel else weight

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        places = self._own(ids.shape[-1], ids.device)
        x = self.tokens(ids) + F.embedding(places, self._shared(self.positions))
        with self.streams.own() if self.sequence_parallel else self.streams.shared():
            x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        given = {name: self._shared(p) for name, p in self.norm.named_parameters()}
        x = torch.func.functional_call(self.norm, given, (x,))
        x = (GatherSequence.apply if self.sequence_parallel else copy_to_ranks)(x, self.group)
        logits = x @ (self.tokens.weight if self.head_weight is None else self.head_weight).mT
        return vocab_parallel_cross_entropy(logits, targets, self.config.vocabulary, self.group)

    def to_full(self) -> dict[str, Tensor]:
        table = self.tokens.to_full()["weight"]
        head = table.clone() if self.head_weight is None else joined(self.head_weight, 0, self.group)
        full = OrderedDict({"tokens.weight": table, "positions.weight": self.positions.detach()})
        for i, block in enumerate(self.blocks):
            for name, tensor in block.to_full().items():
                full[f"blocks.{i}.{name}"] = tensor
        full["norm.weight"], full["norm.bias"] = self.norm.weight.detach(), self.norm.bias.detach()
        full["head.weight"] = head[: self.config.vocabulary]
        return full
