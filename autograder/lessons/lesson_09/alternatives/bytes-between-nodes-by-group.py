from itertools import pairwise


def bytes_sent(model, sizes, batch, sequence, micro_batch):
    tokens = batch * sequence / sizes["dp"]  # of a replica, in a step
    ring = {axis: 2 * (size - 1) / size for axis, size in sizes.items()}
    return {
        "tp": ring["tp"] * 2 * tokens * model.hidden * 4 * model.num_layers / sizes["pp"],
        "dp": ring["dp"] * 2 * count_parameters(model).total / sizes["tp"] / sizes["pp"],
        "pp": 2 * tokens * model.hidden * (sizes["pp"] > 1),
    }


def bytes_between_nodes(sizes, order, gpus_per_node, sent):
    groups = {axis: {} for axis in order}
    for rank in range(math.prod(sizes.values())):
        at = rank_to_coordinates(rank, sizes, order)
        for axis in order:
            key = tuple(sorted((other, place) for other, place in at.items() if other != axis))
            groups[axis].setdefault(key, []).append(rank // gpus_per_node)
    crossing = {}
    for axis in order:
        borders = 0
        for nodes in groups[axis].values():
            inner = sum(a != b for a, b in pairwise(nodes))
            borders += 2 * inner if axis == "pp" else inner + (nodes[0] != nodes[-1])
        crossing[axis] = borders * sent[axis]
    return crossing


def best_order(sizes, gpus_per_node, sent):
    totals = {
        order: math.fsum(bytes_between_nodes(sizes, order, gpus_per_node, sent).values())
        for order in permutations(sorted(sizes))
    }
    return min(totals, key=totals.get)
