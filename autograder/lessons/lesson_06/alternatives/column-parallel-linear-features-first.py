"""Features come first on the way, so that what is gathered needs no joining."""


class GatherFromTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        t, n = group.size(), x.shape[-1]
        ctx.columns = range(group.rank() * n, (group.rank() + 1) * n)
        features_first = x.movedim(-1, 0).contiguous()
        all_first = x.new_empty(t * n, *x.shape[:-1])
        dist.all_gather(list(all_first.split(n)), features_first, group=group)
        return all_first.movedim(0, -1).contiguous()

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output[..., ctx.columns.start : ctx.columns.stop], None


class ColumnParallelLinear(nn.Module):
    def __init__(
        self, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup, gather_output: bool = False
    ):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))
        self.group = group
        self.gather_output = gather_output

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, group: dist.ProcessGroup, gather_output: bool = False
    ) -> "ColumnParallelLinear":
        out, t = linear.weight.shape[0], dist.get_world_size(group)
        if out % t != 0:
            raise ValueError(f"{t} ranks cannot share {out} output features evenly")
        rows = torch.arange(out).view(t, -1)[dist.get_rank(group)].to(linear.weight.device)
        with torch.no_grad():
            weight = linear.weight.index_select(0, rows)
            bias = linear.bias.index_select(0, rows) if linear.bias is not None else None
        return cls(weight, bias, group, gather_output=gather_output)

    def forward(self, x: Tensor) -> Tensor:
        x = CopyToTensorParallel.apply(x, self.group)
        own = torch.einsum("...i,oi->...o", x, self.weight)
        if self.bias is not None:
            own = own + self.bias
        return GatherFromTensorParallel.apply(own, self.group) if self.gather_output else own
