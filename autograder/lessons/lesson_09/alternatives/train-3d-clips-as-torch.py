def stream_seed(seed: int, coordinates: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """Cantor's pairing of natural numbers, twice: no two triples meet, whatever the sizes."""
    number = seed
    for axis in ("pp", "dp"):
        other = coordinates[axis]
        number = (number + other) * (number + other + 1) // 2 + other
    return number


class Stage(nn.Module):
    def __init__(
        self,
        full: Transformer,
        stage: int,
        num_stages: int,
        group: dist.ProcessGroup,
        streams: object,
        parts: Parts,
    ):
        super().__init__()
        self.first, self.last = stage == 0, stage == num_stages - 1
        self.group, self.streams, self.dropout = group, streams, full.config.dropout
        self.vocabulary = full.config.vocabulary
        self.tokens = self.positions = self.norm = self.head_weight = None
        self.blocks = nn.ModuleDict()
        for number in own_layers(full.config.num_layers, stage, num_stages):
            self.blocks[str(number)] = parts.block(full.blocks[number], group, streams)
        if self.first:
            self.tokens = parts.embedding.from_embedding(full.tokens, group)
            self.positions = copy.deepcopy(full.positions.weight)
        if self.last:
            self.norm = copy.deepcopy(full.norm)
        if self.last and (not self.first or not full.config.tied_embeddings):
            self.head_weight = nn.Parameter(parts.embedding.own_rows(full.head.weight, group))

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens is not None:
            places = torch.arange(x.shape[1], device=x.device)
            x = self.tokens(x) + F.embedding(places, self.positions)
            if self.training and self.dropout > 0:
                with self.streams.shared():
                    x = F.dropout(x, self.dropout)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None:
            head = self.tokens.weight if self.head_weight is None else self.head_weight
            x = column_parallel(self.norm(x), head, None, self.group)
        return x


class GPT3D:
    def __init__(
        self,
        full: Transformer,
        sizes: Mapping[str, int],
        order: Sequence[str],
        group: dist.ProcessGroup,
        seed: int = 0,
        parts: Parts | None = None,
    ):
        self.config, self.sizes, self.parts = full.config, dict(sizes), parts or library_parts()
        self.dtype, self.device = full.tokens.weight.dtype, full.tokens.weight.device
        self.number = rank_to_coordinates(dist.get_rank(group), sizes, order)["pp"]
        self.pair = self.end_pairs(order, group) if sizes["pp"] > 1 and full.config.tied_embeddings else None
        self.by_axis = build_groups(sizes, order, group)
        tensor = self.by_axis["tp"]
        seeded = stream_seed(seed, rank_to_coordinates(dist.get_rank(group), sizes, order), sizes)
        self.stage = Stage(
            full, self.number, sizes["pp"], tensor, self.parts.streams(seeded, tensor), self.parts
        )

    def end_pairs(self, order: Sequence[str], group: dist.ProcessGroup) -> dist.ProcessGroup | None:
        """For each rank of a first stage: it, and the one of the last stage with its other coordinates."""
        found, world = None, dist.get_process_group_ranks(group)
        for rank in range(len(world)):
            at = rank_to_coordinates(rank, self.sizes, order)
            if at["pp"] > 0:
                continue
            end = coordinates_to_rank(at | {"pp": self.sizes["pp"] - 1}, self.sizes, order)
            pair = dist.new_group([world[rank], world[end]])
            if dist.get_rank(group) in (rank, end):
                found = pair
        return found

    def step(
        self, ids: Tensor, targets: Tensor, num_micro_batches: int, learning_rate: float, max_norm: float
    ) -> tuple[Tensor, Tensor]:
        for weight in self.stage.parameters():
            weight.grad = None
        inputs, answers = ids.tensor_split(num_micro_batches), targets.tensor_split(num_micro_batches)
        width = self.config.hidden
        last = self.sizes["pp"] - 1
        loss = self.parts.run_schedule(
            PipelinePart(
                stages={self.number: self.stage},
                num_stages=last + 1,
                micro_batches=list(zip(inputs, answers, strict=True)),
                loss_fn=self.loss,
                empty_input=lambda _, i: torch.empty(
                    (*inputs[i].shape, width), dtype=self.dtype, device=self.device
                ),
                tied=self.tied(),
            ),
            self.parts.schedule(self.number, last + 1, num_micro_batches),
            self.by_axis["pp"],
        )
        # With both ends' gradients in the sum already, a mean over replicas is what is left to do.
        self.parts.average_gradients(self.stage, self.by_axis["dp"])
        told = torch.zeros((), dtype=torch.float64, device=self.device)
        if loss is not None:
            told += loss.detach()
        dist.broadcast(told, group=self.by_axis["pp"], group_src=last)
        every = [torch.empty_like(told) for _ in range(self.sizes["dp"])]
        dist.all_gather(every, told, group=self.by_axis["dp"])
        norm = self.gradient_norm()
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for weight in self.stage.parameters():
            weight.data.sub_(weight.grad * factor, alpha=learning_rate)
        return torch.stack(every).mean(), norm

    def tied(self) -> TiedWeight | None:
        if self.pair is None:
            return None
        return TiedWeight(self.stage.tokens.weight if self.stage.first else self.stage.head_weight, self.pair)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.parts.cross_entropy(logits, targets, self.stage.vocabulary, self.by_axis["tp"])

    def gradient_norm(self) -> Tensor:
        """Each square over the number of ranks along tp and pp that bring it, then one sum along each."""
        squares = []
        for name, weight in self.stage.named_parameters():
            copies = 1 if is_cut(name) else self.sizes["tp"]
            if self.pair is not None and name in ("tokens.weight", "head_weight"):
                copies *= 2
            squares.append(weight.grad.pow(2).sum() / copies)
        total = torch.stack(squares).sum()
        for axis in ("pp", "tp"):
            dist.all_reduce(total, group=self.by_axis[axis])
        return total**0.5

    def to_full(self) -> dict[str, Tensor]:
        return stage_to_full(self.stage, self.parts)
