"""Only tokens that count are computed with; the target is a distribution, smoothed or not."""


def vocab_parallel_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    vocabulary: int,
    group: dist.ProcessGroup,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    counted = targets != ignore_index
    y = targets[counted]
    strange = y[(y < 0) | (y >= vocabulary)]
    if len(strange):
        raise ValueError(f"targets {strange.unique().tolist()} are not in a vocabulary of {vocabulary}")
    width = logits.shape[-1]
    first = width * dist.get_rank(group)
    here = max(0, min(width, vocabulary - first))
    z = logits[counted][:, :here]
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    own = torch.cat([z, z.new_full((len(z), 1), -torch.inf)], 1)
    peak = own.detach().max(1).values
    dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
    z = z - peak[:, None]
    columns = torch.arange(first, first + here, device=z.device)
    q = (columns[None, :] == y[:, None]).to(z.dtype) * (1 - label_smoothing) + label_smoothing / vocabulary
    parts = torch.stack([z.exp().sum(1), torch.einsum("nv,nv->n", q, z)], dim=-1)
    denominator, expected = sum_over_ranks(parts, group).unbind(-1)
    return (denominator.log() - expected).mean()
