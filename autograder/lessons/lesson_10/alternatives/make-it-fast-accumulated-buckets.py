ranking_name = "buckets"


def train(
    model: Transformer, batches: Iterable[Tensor], group: dist.ProcessGroup, learning_rate: float
) -> list[float]:
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    tail = [p for name, p in model.named_parameters() if not name.startswith("blocks.")]
    buckets = [*[list(block.parameters()) for block in model.blocks][::-1], tail]
    flats = [torch.zeros(sum(p.numel() for p in bucket), dtype=tail[0].dtype) for bucket in buckets]
    state = {"sending": False, "works": [], "left": []}
    for bucket, flat in zip(buckets, flats, strict=False):
        for p, place in zip(bucket, flat.split([p.numel() for p in bucket]), strict=False):
            p.grad = place.view_as(p)

    def hook_of(n: int):
        def hook(p: Tensor) -> None:
            if state["sending"]:
                state["left"][n] -= 1
                if state["left"][n] == 0:
                    state["works"].append(dist.all_reduce(flats[n], group=group, async_op=True))

        return hook

    handles = [
        p.register_post_accumulate_grad_hook(hook_of(n)) for n, bucket in enumerate(buckets) for p in bucket
    ]
    losses = []
    for batch in batches:
        for flat in flats:
            flat.zero_()
        state["left"] = [len(bucket) for bucket in buckets]
        total = torch.zeros((), dtype=tail[0].dtype)
        for m, ids in enumerate(batch):
            own = ids[rank::ranks]
            state["sending"] = m == len(batch) - 1
            loss = model.loss(own[:, :-1], own[:, 1:])
            total += loss.detach()
            loss.backward()
        state["works"].append(dist.all_reduce(total, group=group, async_op=True))
        for work in state["works"]:
            while not work.is_completed():
                pass
        state["works"].clear()
        scale = 1 / (ranks * len(batch))
        with torch.no_grad():
            for bucket in buckets:
                for p in bucket:
                    p -= learning_rate * scale * p.grad
        losses.append(total * scale)
    for handle in handles:
        handle.remove()
    return [float(loss) for loss in losses]
