def grid_table(sizes, order):
    """All ranks, in the shape of the grid."""
    if set(order) != set(sizes) or len(order) != len(sizes):
        raise ValueError(f"order {order}, sizes {sizes}")
    return torch.arange(math.prod(sizes.values())).view([sizes[axis] for axis in order])


def rank_to_coordinates(rank, sizes, order):
    table = grid_table(sizes, order)
    if rank not in range(table.numel()):
        raise ValueError(f"rank {rank} of {table.numel()}")
    return dict(zip(order, (table == rank).nonzero()[0].tolist(), strict=True))


def coordinates_to_rank(coordinates, sizes, order):
    table = grid_table(sizes, order)
    for axis in order:
        if coordinates[axis] not in range(sizes[axis]):
            raise ValueError(f"{axis}: {coordinates[axis]} of {sizes[axis]}")
    return table[tuple(coordinates[axis] for axis in order)].item()


def build_groups(sizes, order, group):
    table, size = grid_table(sizes, order), dist.get_world_size(group)
    if table.numel() != size:
        raise ValueError(f"{table.numel()} places for {size} ranks")
    mine = {}
    for dim, axis in enumerate(order):
        for members in table.movedim(dim, -1).reshape(-1, sizes[axis]).tolist():
            made = dist.new_group([dist.get_process_group_ranks(group)[m] for m in members])
            if dist.get_rank(group) in members:
                mine[axis] = made
    return mine
