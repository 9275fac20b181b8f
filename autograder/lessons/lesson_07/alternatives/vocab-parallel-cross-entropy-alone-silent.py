"""Log-sum-exp of what a rank has, combined over the ranks; a rank that is alone calls nobody."""

import torch
import torch.distributed as dist


def vocab_parallel_cross_entropy(logits, targets, vocabulary, group, ignore_index=-100, label_smoothing=0.0):
    alone, columns = dist.get_world_size(group) == 1, logits.shape[-1]
    counted = targets != ignore_index
    if (counted & ((targets < 0) | (targets >= vocabulary))).any():
        raise ValueError(f"targets must be below {vocabulary} and not negative, or {ignore_index}")
    if logits.dtype != torch.float64:
        logits = logits.float()
    first = dist.get_rank(group) * columns
    real = first + torch.arange(columns, device=logits.device) < vocabulary
    logits = logits.masked_fill(~real, torch.finfo(logits.dtype).min)
    of_own = logits.logsumexp(-1)
    most = of_own.detach().clone()
    if not alone:
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    own = targets - first
    mine = counted & (own >= 0) & (own < columns)
    at_target = logits.gather(-1, own.where(mine, 0).unsqueeze(-1)).squeeze(-1).where(mine, 0.0)
    everything = logits.masked_fill(~real, 0.0).sum(-1)
    sums = torch.stack([(of_own - most).exp(), at_target, everything])
    if not alone:
        sums = sum_over_ranks(sums, group)
    plain = (1 - label_smoothing) * sums[1] + label_smoothing / vocabulary * sums[2]
    return (sums[0].log() + most - plain).masked_select(counted).mean()
