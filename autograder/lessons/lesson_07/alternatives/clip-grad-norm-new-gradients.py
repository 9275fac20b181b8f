"""Whole gradients count a t-th on each rank; scaled gradients are new tensors."""


def clip_grad_norm(
    cut: Sequence[nn.Parameter], whole: Sequence[nn.Parameter], max_norm: float, group: dist.ProcessGroup
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=device())
    for parameters, share in ((cut, 1.0), (whole, 1.0 / dist.get_world_size(group))):
        for p in parameters:
            if p.grad is not None:
                total += share * torch.linalg.vector_norm(p.grad.double()) ** 2
    dist.all_reduce(total, group=group)
    norm = total.sqrt()
    if norm > max_norm:
        for p in (*cut, *whole):
            if p.grad is not None:
                p.grad = p.grad * (max_norm / norm).to(p.grad.dtype)
    return norm
