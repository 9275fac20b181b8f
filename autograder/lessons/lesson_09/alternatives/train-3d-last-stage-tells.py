def stream_seed(seed: int, coordinates: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """Mixed radix, after seeds of 0 or more have the even numbers and others the odd ones."""
    base = 2 * seed if seed >= 0 else -2 * seed - 1
    return (base * sizes["dp"] + coordinates["dp"]) * sizes["pp"] + coordinates["pp"]


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
        super().__init__()
        self.first, self.last = stage == 0, stage == num_stages - 1
        self.group, self.streams, self.dropout = group, streams, full.config.dropout
        self.vocabulary = full.config.vocabulary
        self.tokens = self.positions = self.norm = self.head_weight = None
        self.blocks = nn.ModuleDict()
        for n in own_layers(full.config.num_layers, stage, num_stages):
            self.blocks[str(n)] = parts.block(full.blocks[n], group, streams)
        if self.first:
            self.tokens = parts.embedding.from_embedding(full.tokens, group)
            self.positions = nn.Parameter(full.positions.weight.detach().clone())
        if self.last:
            self.norm = copy.deepcopy(full.norm)
            if not (self.first and full.config.tied_embeddings):
                self.head_weight = nn.Parameter(parts.embedding.own_rows(full.head.weight.detach(), group))

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.tokens(x) + self.positions[: x.shape[1]]
            if self.training and self.dropout:
                with self.streams.shared():
                    x = F.dropout(x, self.dropout, True)
        for number in sorted(self.blocks, key=int):
            x = self.blocks[number](x)
        if not self.last:
            return x
        weight = self.tokens.weight if self.head_weight is None else self.head_weight
        return column_parallel(self.norm(x), weight, None, self.group)


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
        self.config, self.sizes, self.parts = full.config, dict(sizes), parts or library_parts()
        self.groups = build_groups(sizes, order, group)
        at = rank_to_coordinates(dist.get_rank(group), sizes, order)
        self.number, p = at["pp"], sizes["pp"]
        self.tied = full.config.tied_embeddings and p > 1
        self.tied_group = self.pair_of(order, group) if self.tied else None
        streams = self.parts.streams(stream_seed(seed, at, sizes), self.groups["tp"])
        self.stage = Stage(full, self.number, p, self.groups["tp"], streams, self.parts)
        self.dtype = next(full.parameters()).dtype
        self.wide = torch.promote_types(self.dtype, torch.float32)
        self.device = next(full.parameters()).device

    def pair_of(self, order: Sequence[str], group: dist.ProcessGroup) -> dist.ProcessGroup | None:
        """This rank's pair of first and last stage; every rank makes all pairs."""
        mine = None
        for d in range(self.sizes["dp"]):
            for t in range(self.sizes["tp"]):
                ends = [{"dp": d, "pp": stage, "tp": t} for stage in (0, self.sizes["pp"] - 1)]
                ranks = [coordinates_to_rank(end, self.sizes, order) for end in ends]
                pair = sorted(dist.get_global_rank(group, rank) for rank in ranks)
                made = dist.new_group(pair)
                if dist.get_rank() in pair:
                    mine = made
        return mine

    def tied_weight(self) -> TiedWeight | None:
        if self.tied_group is None:
            return None
        table = self.stage.tokens.weight if self.stage.first else self.stage.head_weight
        return TiedWeight(table, self.tied_group)

    def step(
        self, ids: Tensor, targets: Tensor, num_micro_batches: int, learning_rate: float, max_norm: float
    ) -> tuple[Tensor, Tensor]:
        stage, p = self.stage, self.sizes["pp"]
        for weight in stage.parameters():
            weight.grad = None
        split = [rows.tensor_split(num_micro_batches) for rows in (ids, targets)]
        micro = list(zip(*split, strict=True))

        def empty(_: int, i: int) -> Tensor:
            return torch.empty(*micro[i][0].shape, self.config.hidden, dtype=self.dtype, device=self.device)

        def loss_fn(logits: Tensor, wanted: Tensor) -> Tensor:
            return self.parts.cross_entropy(logits, wanted, self.config.vocabulary, self.groups["tp"])

        part = PipelinePart(
            stages={self.number: stage},
            num_stages=p,
            micro_batches=micro,
            loss_fn=loss_fn,
            empty_input=empty,
            tied=self.tied_weight(),
        )
        actions = self.parts.schedule(self.number, p, num_micro_batches)
        loss = self.parts.run_schedule(part, actions, self.groups["pp"])
        self.parts.average_gradients(stage, self.groups["dp"])
        norm = self.norm()
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        with torch.no_grad():
            for weight in stage.parameters():
                weight -= (learning_rate * scale * weight.grad.to(self.wide)).to(weight.dtype)
        return self.told_by_last(loss), norm

    def norm(self) -> Tensor:
        cut = torch.zeros((), dtype=self.wide, device=self.device)
        whole = torch.zeros_like(cut)
        for name, weight in self.stage.named_parameters():
            if self.tied and not self.stage.first and name == "head_weight":
                continue
            square = weight.grad.to(self.wide).square().sum()
            if is_cut(name):
                cut += square
            else:
                whole += square
        dist.all_reduce(cut, group=self.groups["tp"])
        squares = [torch.zeros_like(cut) for _ in range(self.sizes["pp"])]
        dist.all_gather(squares, cut + whole, group=self.groups["pp"])
        return torch.stack(squares).sum().sqrt()

    def told_by_last(self, loss: Tensor | None) -> Tensor:
        """The mean over replicas of what the last stage has."""
        if loss is None:
            loss = torch.zeros((), device=self.device)
        loss = loss.detach().to(self.wide, copy=True)
        dist.broadcast(loss, group_src=self.sizes["pp"] - 1, group=self.groups["pp"])
        dist.all_reduce(loss, group=self.groups["dp"])
        return loss / self.sizes["dp"]

    def to_full(self) -> dict[str, Tensor]:
        return stage_to_full(self.stage, self.parts)
