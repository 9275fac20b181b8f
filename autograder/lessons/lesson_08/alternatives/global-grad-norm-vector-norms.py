def clip_grad_norm(shards, owned, replicated, max_norm, group):
    parts = [
        s.grad.detach()[:n].to(torch.float64)
        for s, n in zip(shards, owned, strict=True)
        if s.grad is not None
    ]
    total = torch.zeros(1, dtype=torch.float64)
    if parts:
        total[0] = torch.stack([torch.linalg.vector_norm(part) for part in parts]).pow(2).sum()
    # parameters that every rank has count on one rank only
    if dist.get_rank(group) == 0:
        for p in replicated:
            if p.grad is not None:
                total += p.grad.to(torch.float64).pow(2).sum()
    if dist.get_world_size(group) > 1:
        dist.all_reduce(total, group=group)
    norm = total[0].sqrt()
    if norm + 1e-6 > max_norm:
        for p in list(shards) + list(replicated):
            if p.grad is not None:
                p.grad *= (max_norm / (norm + 1e-6)).to(p.grad.dtype)
    return norm
