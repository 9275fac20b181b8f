ranking_name = "all rows at once"


def train(
    model: Transformer, batches: Iterable[Tensor], group: dist.ProcessGroup, learning_rate: float
) -> list[float]:
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    order = list(model.parameters())[::-1]
    cut = sum(p.numel() for p in order) / 4
    groups: list[list[nn.Parameter]] = [[]]
    for p in order:
        if sum(q.numel() for q in groups[-1]) > cut:
            groups.append([])
        groups[-1].append(p)
    on_the_way: list[tuple[list[nn.Parameter], Tensor, dist.Work]] = []
    missing = [0] * len(groups)

    def ready(n: int) -> None:
        missing[n] -= 1
        if missing[n] == 0:
            flat = torch.cat([p.grad.flatten() for p in groups[n]])
            on_the_way.append((groups[n], flat, dist.all_reduce(flat, group=group, async_op=True)))

    handles = [
        p.register_post_accumulate_grad_hook(lambda _, n=n: ready(n))
        for n, members in enumerate(groups)
        for p in members
    ]
    found = []
    for batch in batches:
        missing[:] = [len(members) for members in groups]
        for p in order:
            p.grad = None
        rows = torch.cat([ids.chunk(ranks)[rank] for ids in batch])
        loss = model.loss(rows[:, :-1], rows[:, 1:]) / ranks
        told = loss.detach().clone()
        telling = dist.all_reduce(told, group=group, async_op=True)
        loss.backward()
        with torch.no_grad():
            for members, flat, work in on_the_way:
                work.wait()
                for p, part in zip(members, flat.split([p.numel() for p in members]), strict=False):
                    p -= learning_rate * part.view_as(p)
        on_the_way.clear()
        telling.wait()
        found.append(told)
    for handle in handles:
        handle.remove()
    return [loss.item() for loss in found]
