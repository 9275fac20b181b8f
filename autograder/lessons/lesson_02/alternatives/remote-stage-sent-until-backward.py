"""The activation leaves while the host goes on: backward, or a pass without gradients, waits for it."""


class SendActivation(torch.autograd.Function):
    """Forward: send x to `peer`, return a handle. Backward: the gradient of x is what
    `peer` sends back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, peer: int, group: dist.ProcessGroup, later: bool) -> Tensor:
        ctx.peer, ctx.group = peer, group
        about = [DTYPES.index(x.dtype), x.dim(), *x.shape, *[0] * (6 - x.dim())]
        sent = [torch.tensor(about, device=x.device), x.detach().contiguous()]
        works = [dist.isend(t, group_dst=peer, group=group) for t in sent]
        ctx.under_way = list(zip(works, sent, strict=True))
        if not later:
            for work, _ in ctx.under_way:
                work.wait()
        return x.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None, None]:
        for work, _ in ctx.under_way:
            work.wait()
        ctx.under_way = None
        return receive_tensor(ctx.peer, ctx.group), None, None, None


class ReceiveActivation(torch.autograd.Function):
    """Forward: return what `peer` sends. Backward: send its gradient to `peer`."""

    @staticmethod
    def forward(ctx: Any, handle: Tensor, peer: int, group: dist.ProcessGroup) -> Tensor:
        ctx.peer, ctx.group = peer, group
        return receive_tensor(peer, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        send_tensor(grad, ctx.peer, ctx.group)
        return None, None, None


class RemoteStage(nn.Module):
    """This rank's stage of a model whose layers are split over the ranks of `group`,
    in order of rank.

    module: this rank's layers, some of which are trained; eval() is heard. A group of one rank
    sends nothing. Under torch.no_grad() activations are sent, no gradient is waited for, and the
    output has no graph. Messages of integers, which announce a shape, are not counted. When
    backward returns, or forward under no_grad, what went in or came out may be overwritten.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup):
        super().__init__()
        self.module, self.group = module, group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)

    def forward(self, x: Tensor | None = None) -> Tensor:
        """x: the input, on the first rank only. Returns the output on the last rank,
        elsewhere a handle.
        """
        if self.rank > 0:
            x = ReceiveActivation.apply(torch.zeros((), requires_grad=True), self.rank - 1, self.group)
        y = self.module(x)
        if self.rank < self.world_size - 1:
            y = SendActivation.apply(y, self.rank + 1, self.group, torch.is_grad_enabled())
        return y
