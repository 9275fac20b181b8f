import torch
import torch.distributed as dist


def clip_grad_norm(shards, owned, replicated, max_norm, group):
    total = torch.zeros((), dtype=torch.float64)
    for shard, count in zip(shards, owned, strict=True):
        if shard.grad is not None:
            total += shard.grad[:count].double().pow(2).sum()
    dist.all_reduce(total, group=group)
    norm = (total + sum(p.grad.double().pow(2).sum() for p in replicated if p.grad is not None)).sqrt()
    for p in [*shards, *replicated]:
        if p.grad is not None:
            p.grad *= min(1.0, max_norm / (norm.item() + 1e-6))
    return norm.float()
