def rank_to_coordinates(rank: int, sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    """The rank-th point of the grid, walked through with the last axis fastest."""
    if sorted(order) != sorted(sizes):
        raise ValueError(f"order {tuple(order)} and axes {tuple(sizes)} differ")
    points = list(product(*(range(sizes[axis]) for axis in order)))
    if not 0 <= rank < len(points):
        raise ValueError(f"rank {rank}, but the grid has ranks 0 to {len(points) - 1}")
    return dict(zip(order, points[rank], strict=True))


def coordinates_to_rank(
    coordinates: Mapping[str, int], sizes: Mapping[str, int], order: Sequence[str]
) -> int:
    """Outermost axis first: its coordinate times all that is inside it, and then the inside alone."""
    if not order:
        return 0
    axis, *inside = order
    coordinate = coordinates[axis]
    if coordinate < 0 or coordinate >= sizes[axis]:
        raise ValueError(f"axis {axis} goes from 0 to {sizes[axis] - 1}, not to {coordinate}")
    width = math.prod(sizes[other] for other in inside)
    return coordinate * width + coordinates_to_rank(coordinates, sizes, inside)


def build_groups(
    sizes: Mapping[str, int], order: Sequence[str], group: dist.ProcessGroup
) -> dict[str, dist.ProcessGroup]:
    """The same set of ranks is made a group once, also where several axes have it (axes of size 1)."""
    everybody = dist.get_process_group_ranks(group)
    grid = math.prod(sizes.values())
    if grid != dist.get_world_size(group):
        raise ValueError(f"{grid} places in the grid for {dist.get_world_size(group)} ranks")
    where = [rank_to_coordinates(rank, sizes, order) for rank in range(grid)]
    made: dict[tuple[int, ...], dist.ProcessGroup] = {}
    own: dict[str, dist.ProcessGroup] = {}
    for axis in sizes:
        for here in where:
            members = tuple(
                everybody[rank]
                for rank, there in enumerate(where)
                if all(there[other] == here[other] for other in sizes if other != axis)
            )
            if members not in made:
                made[members] = dist.new_group(list(members))
            if here == where[dist.get_rank(group)]:
                own[axis] = made[members]
    return own
