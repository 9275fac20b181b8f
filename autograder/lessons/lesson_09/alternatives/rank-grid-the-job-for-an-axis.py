def rank_to_coordinates(rank: int, sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    """Digit by digit, the last axis first."""
    if len(order) != len(sizes) or set(order) != set(sizes):
        raise ValueError(f"the order {list(order)} does not name each of {list(sizes)} once")
    total = math.prod(sizes.values())
    if rank not in range(total):
        raise ValueError(f"a grid of {total} ranks has no rank {rank}")
    found = {}
    for axis in reversed(order):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def coordinates_to_rank(
    coordinates: Mapping[str, int], sizes: Mapping[str, int], order: Sequence[str]
) -> int:
    """Horner's rule."""
    rank = 0
    for axis in order:
        if not 0 <= coordinates[axis] < sizes[axis]:
            raise ValueError(f"{axis} {coordinates[axis]} is not below {sizes[axis]}")
        rank = rank * sizes[axis] + coordinates[axis]
    return rank


def build_groups(
    sizes: Mapping[str, int], order: Sequence[str], group: dist.ProcessGroup
) -> dict[str, dist.ProcessGroup]:
    """One group after the other; where an axis spans all ranks, the group that is there already."""
    world, mine = dist.get_process_group_ranks(group), dist.get_rank(group)
    total = math.prod(sizes.values())
    if total != len(world):
        raise ValueError(f"the grid has {total} ranks, and the job {len(world)}")
    rank_to_coordinates(mine, sizes, order)  # refuses another grid's order
    groups = {}
    for axis in order:
        if sizes[axis] == total:
            groups[axis] = group
            continue
        for first in range(total):
            place = rank_to_coordinates(first, sizes, order)
            if place[axis]:
                continue
            members = [coordinates_to_rank(place | {axis: i}, sizes, order) for i in range(sizes[axis])]
            made = dist.new_group([world[member] for member in members])
            if mine in members:
                groups[axis] = made
    return groups
