def program_3(
    model: nn.Module, documents: Sequence[Tensor], group: dist.ProcessGroup, learning_rate: float
) -> None:
    ranks, me = dist.get_world_size(group), dist.get_rank(group)
    order = sorted(range(len(documents)), key=lambda n: (-len(documents[n]), n))
    load = [0] * ranks
    mine = []
    for n in order:
        to = min(range(ranks), key=lambda r: (load[r], -r))
        load[to] += len(documents[n]) - 1
        if to == me:
            mine.append(documents[n])
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    if mine:
        losses = [F.cross_entropy(model(ids[:-1]), ids[1:], reduction="sum") for ids in mine]
        (torch.stack(losses).sum() / sum(load)).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)
        p.data -= learning_rate * p.grad
