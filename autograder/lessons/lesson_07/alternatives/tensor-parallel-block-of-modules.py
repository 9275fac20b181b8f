"""Dropout and norms are modules of their own, which know what their tensors go through."""


class _SharedDropout(nn.Module):
    def __init__(self, p: float, stream: Callable):
        super().__init__()
        self.p, self.stream = p, stream

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        with self.stream():
            return F.dropout(x, self.p)


class _Norm(nn.LayerNorm):
    def __init__(self, norm: nn.LayerNorm, through: Callable[[Tensor], Tensor]):
        super().__init__(norm.normalized_shape, norm.eps)
        self.weight, self.bias = parameter(norm.weight), parameter(norm.bias)
        self.through = through

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(
            x, self.normalized_shape, self.through(self.weight), self.through(self.bias), self.eps
        )


class TensorParallelBlock(nn.Module):
    def __init__(
        self,
        block: nn.Module,
        group: dist.ProcessGroup,
        streams: RandomStreams,
        sequence_parallel: bool = False,
    ):
        super().__init__()
        self.group, self.streams, self.sequence_parallel = group, streams, sequence_parallel
        self.dropout = block.dropout.p
        enter, leave = (
            (sequence_column_parallel, sequence_row_parallel)
            if sequence_parallel
            else (column_parallel, row_parallel)
        )
        through = (lambda p: copy_to_ranks(p, group)) if sequence_parallel else (lambda p: p)
        self.attention_norm = _Norm(block.attention_norm, through)
        self.mlp_norm = _Norm(block.mlp_norm, through)
        self.attention = TensorParallelAttention.from_attention(block.attention, group, enter, leave)
        whole_attend = block.attention.attend

        def attend(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
            with streams.own():
                return whole_attend(q, k, v, p)

        self.attention.attend = attend
        self.mlp = TensorParallelMLP(block.mlp, group, enter, leave)
        self.drop = _SharedDropout(self.dropout, streams.own if sequence_parallel else streams.shared)

    def forward(self, x: Tensor) -> Tensor:
        for norm, part in ((self.attention_norm, self.attention), (self.mlp_norm, self.mlp)):
            x = x + self.drop(part(norm(x)))
        return x

    def to_full(self) -> dict[str, Tensor]:
        full = {}
        for name in ("attention", "mlp"):
            full |= {f"{name}.{key}": value for key, value in getattr(self, name).to_full().items()}
            norm = getattr(self, f"{name}_norm")
            full |= {f"{name}_norm.{key}": value for key, value in norm.state_dict().items()}
        return full
