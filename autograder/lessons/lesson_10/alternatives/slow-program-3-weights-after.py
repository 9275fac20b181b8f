import heapq


def program_3(
    model: nn.Module, documents: Sequence[Tensor], group: dist.ProcessGroup, learning_rate: float
) -> None:
    heap = [(0, rank, []) for rank in range(dist.get_world_size(group))]
    for ids in sorted(documents, key=lambda ids: -ids.numel()):
        load, rank, share = heapq.heappop(heap)
        heapq.heappush(heap, (load + ids.numel() - 1, rank, [*share, ids]))
    mine = next(share for _, rank, share in heap if rank == dist.get_rank(group))
    model.zero_grad()
    loss = sum(
        (F.cross_entropy(model(ids[:-1]), ids[1:], reduction="sum") for ids in mine), torch.tensor(0.0)
    )
    if mine:
        loss.backward()
    tokens = torch.tensor(float(sum(len(ids) - 1 for ids in mine)))
    dist.all_reduce(tokens, group=group)
    for p in model.parameters():
        gradient = p.grad if p.grad is not None else torch.zeros_like(p)
        dist.all_reduce(gradient, group=group)
        with torch.no_grad():
            p -= learning_rate * gradient / tokens.to(p.dtype)
