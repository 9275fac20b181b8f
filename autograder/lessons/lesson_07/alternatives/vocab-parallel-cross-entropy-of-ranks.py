"""Each rank's log-sum-exp first; the ranks combine these as one combines logits."""


def vocab_parallel_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    vocabulary: int,
    group: dist.ProcessGroup,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    counted = targets.ne(ignore_index)
    bad = counted & ((targets < 0) | (targets >= vocabulary))
    if bad.any():
        raise ValueError(f"targets outside a vocabulary of {vocabulary}: {targets[bad].unique().tolist()}")
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    columns = logits.shape[-1]
    first = dist.get_rank(group) * columns
    real = min(max(vocabulary - first, 0), columns)
    own = logits[..., :real]
    # each rank's log-sum-exp, then the log-sum-exp of those: max, then one sum of all that is to be added
    part = torch.logsumexp(own, dim=-1) if real else logits.new_full(targets.shape, float("-inf"))
    top = part.detach().clone()
    dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
    place = targets - first
    here = counted & (place >= 0) & (place < real)
    if real:
        at_target = own.gather(-1, place.clamp(0, real - 1).unsqueeze(-1)).squeeze(-1)
        at_target = torch.where(here, at_target - top, torch.zeros_like(top))
    else:
        at_target = 0 * logits.sum(-1)  # in the graph, though this rank has no column that counts
    pieces = [torch.exp(part - top), at_target]
    if label_smoothing:
        pieces.append((own - top.unsqueeze(-1)).sum(-1))
    sums = sum_over_ranks(torch.stack(pieces, dim=-1), group).unbind(-1)
    loss = sums[0].log() - (1 - label_smoothing) * sums[1]
    if label_smoothing:
        loss = loss - label_smoothing / vocabulary * sums[2]
    return loss[counted].sum() / counted.sum()
