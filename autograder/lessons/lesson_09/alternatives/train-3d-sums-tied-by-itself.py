def stream_seed(seed: int, coordinates: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """The seed of a rank's random streams, 0 or more: equal along tp, another for each dp and pp."""
    return (seed * sizes["dp"] + coordinates["dp"]) * sizes["pp"] + coordinates["pp"]


class Stage(nn.Module):
    """One pipeline stage of a GPT on the ranks of a tensor-parallel group."""

    def __init__(
        self,
        full: Transformer,
        stage: int,
        num_stages: int,
        group: dist.ProcessGroup,
        streams: object,
        parts: Parts,
    ):
        """This rank's part of `full`, which is left alone and of which nothing else is kept.

        Sets tokens and positions [s, h] (first stage), norm and head_weight (last stage; None where tokens
        are the head too): None on other stages.
        """
        super().__init__()
        self.first, self.last = stage == 0, stage == num_stages - 1
        self.group, self.streams, self.dropout = group, streams, full.config.dropout
        self.vocabulary = full.config.vocabulary
        self.tokens = self.positions = self.norm = self.head_weight = None
        layers = own_layers(full.config.num_layers, stage, num_stages)
        self.blocks = nn.ModuleDict({str(n): parts.block(full.blocks[n], group, streams) for n in layers})
        if self.first:
            self.tokens = parts.embedding.from_embedding(full.tokens, group)
            self.positions = nn.Parameter(full.positions.weight.detach().clone())
        if self.last:
            self.norm = copy.deepcopy(full.norm)
            if not (self.first and full.config.tied_embeddings):
                self.head_weight = nn.Parameter(parts.embedding.own_rows(full.head.weight.detach(), group))

    def forward(self, x: Tensor) -> Tensor:
        """ids [b, s] on the first stage, activations [b, s, h] on others -> activations; on the last stage
        logits [b, s, ceil(V / t)] of this rank's columns.
        """
        if self.first:
            with self.streams.shared():
                x = F.dropout(self.tokens(x) + self.positions[: x.shape[1]], self.dropout, self.training)
        for block in self.blocks.values():
            x = block(x)
        if self.last:
            head = self.tokens.weight if self.head_weight is None else self.head_weight
            x = column_parallel(self.norm(x), head, None, self.group)
        return x


class GPT3D:
    """One rank's part of a GPT on a grid of ranks, and its training."""

    def __init__(
        self,
        full: Transformer,
        sizes: Mapping[str, int],
        order: Sequence[str],
        group: dist.ProcessGroup,
        seed: int = 0,
        parts: Parts | None = None,
    ):
        """All ranks of `group` call this, with equal models, which are left alone. Sets `stage`."""
        self.config, self.sizes, self.parts = full.config, dict(sizes), parts or library_parts()
        self.at = rank_to_coordinates(dist.get_rank(group), sizes, order)
        self.groups = build_groups(sizes, order, group)
        streams = self.parts.streams(stream_seed(seed, self.at, sizes), self.groups["tp"])
        self.stage = Stage(full, self.at["pp"], sizes["pp"], self.groups["tp"], streams, self.parts)
        self.tied = self._tied_weight(order, group)

    def _tied_weight(self, order: Sequence[str], group: dist.ProcessGroup) -> TiedWeight | None:
        if not self.config.tied_embeddings or self.sizes["pp"] == 1:
            return None
        mine = None
        for dp, tp in product(range(self.sizes["dp"]), range(self.sizes["tp"])):
            ends = [
                coordinates_to_rank({"dp": dp, "tp": tp, "pp": pp}, self.sizes, order)
                for pp in (0, self.sizes["pp"] - 1)
            ]
            made = dist.new_group([dist.get_global_rank(group, rank) for rank in ends])
            if dist.get_rank(group) in ends:
                mine = made
        if mine is None:
            return None
        return TiedWeight(self.stage.tokens.weight if self.stage.first else self.stage.head_weight, mine)

    def step(
        self, ids: Tensor, targets: Tensor, num_micro_batches: int, learning_rate: float, max_norm: float
    ) -> tuple[Tensor, Tensor]:
        """One step of plain SGD. Returns the mean loss of all replicas' tokens, and the norm of the whole
        model's gradient before it was clipped to `max_norm`: two scalars, the same on every rank.

        ids, targets: [B / d, s], the rows of this rank's replica.
        """
        self.stage.zero_grad()
        stage, num_stages = self.at["pp"], self.sizes["pp"]
        actions = self.parts.schedule(stage, num_stages, num_micro_batches)
        part = self._part(
            list(zip(*(rows.tensor_split(num_micro_batches) for rows in (ids, targets)), strict=True))
        )
        loss = self.parts.run_schedule(part, actions, self.groups["pp"])
        if self.tied is not None:
            dist.all_reduce(self.tied.parameter.grad, group=self.tied.group)
        norm = self._clip(max_norm)
        with torch.no_grad():
            for parameter in self.stage.parameters():
                parameter -= learning_rate * parameter.grad
        return self._mean(loss, norm), norm

    def _part(self, micro_batches: list[tuple[Tensor, Tensor]]) -> PipelinePart:
        weight = next(self.stage.parameters())

        def empty_input(stage: int, i: int) -> Tensor:
            return weight.new_empty(*micro_batches[i][0].shape, self.config.hidden)

        return PipelinePart(
            {self.at["pp"]: self.stage},
            self.sizes["pp"],
            micro_batches,
            lambda logits, target: self.parts.cross_entropy(
                logits, target, self.config.vocabulary, self.groups["tp"]
            ),
            empty_input,
            None,
            lambda stage: self.parts.average_gradients(self.stage, self.groups["dp"]),
        )

    def _clip(self, max_norm: float) -> Tensor:
        squares = torch.zeros((), dtype=torch.float64, device=next(self.stage.parameters()).device)
        for name, parameter in self.stage.named_parameters():
            copied = name == "head_weight" and self.tied is not None
            if not copied and (is_cut(name) or self.at["tp"] == 0):
                squares += parameter.grad.double().square().sum()
        dist.all_reduce(squares, group=self.groups["tp"])
        dist.all_reduce(squares, group=self.groups["pp"])
        norm = squares.sqrt()
        if norm > max_norm:
            for parameter in self.stage.parameters():
                parameter.grad *= max_norm / norm
        return norm

    def _mean(self, loss: Tensor | None, like: Tensor) -> Tensor:
        mean = torch.zeros_like(like) if loss is None else loss.to(like.dtype, copy=True)
        last = dist.get_global_rank(self.groups["pp"], self.sizes["pp"] - 1)
        dist.broadcast(mean, last, group=self.groups["pp"])
        dist.all_reduce(mean, group=self.groups["dp"])
        return mean / self.sizes["dp"]

    def to_full(self) -> dict[str, Tensor]:
        """What this rank's stage holds, by the whole model's names. All its tensor-parallel ranks call it."""
        return stage_to_full(self.stage, self.parts)
