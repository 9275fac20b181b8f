def bytes_sent(model, sizes, batch, sequence, micro_batch):
    d, p, t = (torch.tensor(float(sizes[axis]), dtype=torch.float64) for axis in ("dp", "pp", "tp"))
    rounds = batch / (d * micro_batch)
    activation = 2.0 * micro_batch * sequence * model.hidden
    return {
        "tp": 8 * rounds * model.num_layers / p * (1 - 1 / t) * activation,
        "dp": 4 * (1 - 1 / d) * count_parameters(model).total / (p * t),
        "pp": (p > 1) * rounds * activation,
    }


def bytes_between_nodes(sizes, order, gpus_per_node, sent):
    nodes = torch.arange(math.prod(sizes.values())).view([sizes[axis] for axis in order]) // gpus_per_node
    found = {}
    for dim, axis in enumerate(order):
        if axis == "pp":
            here, there = nodes.narrow(dim, 0, sizes[axis] - 1), nodes.narrow(dim, 1, sizes[axis] - 1)
            found[axis] = 2 * sent[axis] * (here != there).sum()
        else:
            found[axis] = sent[axis] * (nodes != nodes.roll(-1, dim)).sum()
    return found


def best_order(sizes, gpus_per_node, sent):
    orders = list(permutations(sizes))
    crossing = [sum(bytes_between_nodes(sizes, order, gpus_per_node, sent).values()) for order in orders]
    return orders[torch.stack(crossing).argmin()]
