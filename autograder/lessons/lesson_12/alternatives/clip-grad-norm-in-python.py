"""Sums in Python's floats, an expert's part divided among its copies, gradients replaced and not changed."""

from math import fsum, sqrt


def _squares(parameters: Sequence[nn.Parameter]) -> float:
    gradients = (p.grad.detach().double().flatten() for p in parameters if p.grad is not None)
    return fsum(torch.vdot(g, g).item() for g in gradients)


def clip_grad_norm(
    shared: Sequence[nn.Parameter],
    experts: Sequence[nn.Parameter],
    max_norm: float,
    everyone: dist.ProcessGroup,
    replicas: dist.ProcessGroup,
) -> Tensor:
    n, copies = dist.get_world_size(everyone), dist.get_world_size(replicas)
    device = next((p.device for p in [*shared, *experts]), torch.device("cpu"))
    mine = _squares(shared) / n + _squares(experts) / copies
    total = torch.tensor([mine], dtype=torch.float64, device=device)
    dist.all_reduce(total, group=everyone)
    norm = sqrt(total.item())
    if norm > max_norm:
        for parameter in (*shared, *experts):
            if parameter.grad is not None:
                parameter.grad = parameter.grad * (max_norm / norm)
    return torch.tensor(norm, dtype=torch.float64)
