"""Zeros, into which a rank puts the vectors that it has."""


class VocabParallelEmbedding(nn.Module):
    def __init__(
        self,
        weight: Tensor,
        vocabulary: int,
        group: dist.ProcessGroup,
        leave: Callable[[Tensor, dist.ProcessGroup], Tensor] = sum_over_ranks,
    ):
        super().__init__()
        self.weight, self.vocabulary, self.group, self.leave = nn.Parameter(weight), vocabulary, group, leave

    @staticmethod
    def own_rows(table: Tensor, group: dist.ProcessGroup) -> Tensor:
        t, r = dist.get_world_size(group), dist.get_rank(group)
        rows = (table.shape[0] + t - 1) // t
        own = table.new_zeros((rows, *table.shape[1:]))
        there = table.detach()[r * rows : (r + 1) * rows]
        own[: there.shape[0]] = there
        return own

    @classmethod
    def from_embedding(
        cls,
        embedding: nn.Embedding,
        group: dist.ProcessGroup,
        leave: Callable[[Tensor, dist.ProcessGroup], Tensor] = sum_over_ranks,
    ) -> "VocabParallelEmbedding":
        return cls(cls.own_rows(embedding.weight, group), embedding.num_embeddings, group, leave)

    def forward(self, ids: Tensor) -> Tensor:
        if ids.numel() and not (ids.min().item() >= 0 and ids.max().item() < self.vocabulary):
            raise IndexError(f"ids must be 0 to {self.vocabulary - 1}, found {ids.min()} to {ids.max()}")
        rows = self.weight.shape[0]
        place = ids.to(torch.int64) - dist.get_rank(self.group) * rows
        mine = (place.clamp(0, rows - 1) == place).nonzero(as_tuple=True)
        vectors = self.weight.new_zeros(*ids.shape, self.weight.shape[1])
        vectors = vectors.index_put(mine, self.weight[place[mine]])
        return self.leave(vectors, self.group)

    def to_full(self) -> dict[str, Tensor]:
        return {"weight": joined(self.weight, 0, self.group)[: self.vocabulary].clone()}
