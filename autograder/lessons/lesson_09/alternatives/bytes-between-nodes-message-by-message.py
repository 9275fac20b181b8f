def bytes_sent(
    model: ModelConfig, sizes: Mapping[str, int], batch: int, sequence: int, micro_batch: int
) -> dict[str, float]:
    m = batch // sizes["dp"] // micro_batch
    activation = micro_batch * sequence * model.hidden * 2
    tp = (
        sum(2 * (sizes["tp"] - 1) * activation / sizes["tp"] for _ in range(m * 4))
        * model.num_layers
        / sizes["pp"]
    )
    shard = 2 * count_parameters(model).total / sizes["pp"] / sizes["tp"] / sizes["dp"]
    return {"tp": tp, "dp": 2 * (sizes["dp"] - 1) * shard, "pp": m * activation if sizes["pp"] != 1 else 0}


def messages(axis: str, sizes: Mapping[str, int], order: Sequence[str]) -> Iterator[tuple[int, int]]:
    for rank in range(math.prod(sizes.values())):
        at = rank_to_coordinates(rank, sizes, order)
        after = (at[axis] + 1) % sizes[axis]
        if axis == "pp" and after == 0:
            continue
        to = coordinates_to_rank({**at, axis: after}, sizes, order)
        yield rank, to
        if axis == "pp":
            yield to, rank


def bytes_between_nodes(
    sizes: Mapping[str, int], order: Sequence[str], gpus_per_node: int, sent: Mapping[str, float]
) -> dict[str, float]:
    def crosses(message: tuple[int, int]) -> bool:
        sender, receiver = (rank // gpus_per_node for rank in message)
        return sender != receiver

    return {axis: sent[axis] * sum(map(crosses, messages(axis, sizes, order))) for axis in sizes}


def best_order(sizes: Mapping[str, int], gpus_per_node: int, sent: Mapping[str, float]) -> tuple[str, ...]:
    best, fewest = (), math.inf
    for order in permutations(sizes):
        total = sum(bytes_between_nodes(sizes, order, gpus_per_node, sent).values())
        if total < fewest:
            best, fewest = order, total
    return best
