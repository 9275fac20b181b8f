def clip_grad_norm(shards, owned, replicated, max_norm, group):
    own = sum(
        float((s.grad[:n].double() ** 2).sum())
        for s, n in zip(shards, owned, strict=True)
        if s.grad is not None
    )
    same = sum(float((p.grad.double() ** 2).sum()) for p in replicated if p.grad is not None)
    squares = torch.tensor([own + same / dist.get_world_size(group)], dtype=torch.float64)
    dist.all_reduce(squares, group=group)
    norm = float(squares) ** 0.5
    for p in [*shards, *replicated]:
        if p.grad is not None:
            p.grad.copy_(p.grad * min(1.0, max_norm / (norm + 1e-6)))
    return torch.tensor(norm, dtype=torch.float64)
