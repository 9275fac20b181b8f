"""Parameters and arguments by name, and by head; heads are told apart before they are turned."""


class TensorParallelAttention(nn.Module):
    def __init__(
        self,
        config: ModelConfig,
        attend: Callable[[Tensor, Tensor, Tensor, float], Tensor],
        qkv: tuple[Tensor, Tensor | None],
        output: tuple[Tensor, Tensor | None],
        group: dist.ProcessGroup,
        enter: Product = column_parallel,
        leave: Product = row_parallel,
    ):
        super().__init__()
        self.config, self.attend, self.group = config, attend, group
        self.enter, self.leave = enter, leave
        self.qkv_weight, self.qkv_bias = map(parameter, qkv)
        self.output_weight, self.output_bias = map(parameter, output)

    @classmethod
    def from_attention(
        cls,
        attention: nn.Module,
        group: dist.ProcessGroup,
        enter: Product = column_parallel,
        leave: Product = row_parallel,
    ) -> "TensorParallelAttention":
        t, rank, config = dist.get_world_size(group), dist.get_rank(group), attention.config
        for kind, number in (("query heads", config.num_heads), ("key-value heads", config.num_kv_heads)):
            if number % t:
                raise ValueError(f"{number} {kind} cannot be shared by {t} ranks")
        state = {name: tensor.detach() for name, tensor in attention.named_parameters()}

        def rows(which: str) -> Tensor | None:
            found = []
            for name, heads in (
                ("query", config.num_heads),
                ("key", config.num_kv_heads),
                ("value", config.num_kv_heads),
            ):
                tensor = state.get(f"{name}.{which}")
                if tensor is None:
                    return None
                by_head = tensor.unflatten(0, (heads, config.head_size))
                own = heads // t
                found.append(by_head[rank * own : (rank + 1) * own].flatten(0, 1))
            return torch.vstack(found) if which == "weight" else torch.hstack(found)

        width = config.num_heads * config.head_size // t
        columns = state["output.weight"].narrow(1, rank * width, width).contiguous()
        return cls(
            config,
            attention.attend,
            (rows("weight"), rows("bias")),
            (columns, state.get("output.bias")),
            group,
            enter,
            leave,
        )

    def forward(self, x: Tensor) -> Tensor:
        packed = self.enter(x, weight=self.qkv_weight, bias=self.qkv_bias, group=self.group)
        b, s, _ = packed.shape
        packed = packed.view(b, s, sum(self.own_heads()), self.config.head_size)
        a, k, _ = self.own_heads()
        q, k_, v = (
            part.permute(0, 2, 1, 3)
            for part in (packed[:, :, :a], packed[:, :, a : a + k], packed[:, :, a + k :])
        )
        p = self.config.dropout * self.training
        mixed = self.attend(q, k_, v, p)
        mixed = mixed.permute(0, 2, 1, 3).flatten(2)
        return self.leave(mixed, weight=self.output_weight, bias=self.output_bias, group=self.group)

    def own_heads(self) -> list[int]:
        size, config = dist.get_world_size(self.group), self.config
        return [n // size for n in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]

    def to_full(self) -> dict[str, Tensor]:
        t = dist.get_world_size(self.group)
        full = {}
        for which, packed in (("weight", self.qkv_weight), ("bias", self.qkv_bias)):
            if packed is None:
                continue
            everyone = joined(packed, 0, self.group).chunk(t)
            sizes = [n * self.config.head_size for n in self.own_heads()]
            split = [of_rank.split(sizes) for of_rank in everyone]
            for place, name in enumerate(("query", "key", "value")):
                full[f"{name}.{which}"] = torch.cat([parts[place] for parts in split])
        full["output.weight"] = joined(self.output_weight, 1, self.group)
        if self.output_bias is not None:
            full["output.bias"] = self.output_bias.detach().clone()
        return full
