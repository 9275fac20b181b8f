def strides(sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    if len(order) != len(sizes) or any(axis not in order for axis in sizes):
        raise ValueError("the order names other axes than the sizes")
    found, stride = {}, 1
    for axis in tuple(order)[::-1]:
        found[axis] = stride
        stride *= sizes[axis]
    return found


def rank_to_coordinates(rank: int, sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    steps = strides(sizes, order)
    if rank < 0 or rank >= math.prod(sizes.values()):
        raise ValueError("there is no such rank")
    return {axis: rank // steps[axis] % sizes[axis] for axis in order}


def coordinates_to_rank(
    coordinates: Mapping[str, int], sizes: Mapping[str, int], order: Sequence[str]
) -> int:
    steps = strides(sizes, order)
    outside = [axis for axis in order if not 0 <= coordinates[axis] <= sizes[axis] - 1]
    if outside:
        raise ValueError(f"outside of the grid along {outside}")
    return sum(coordinates[axis] * steps[axis] for axis in order)


def build_groups(
    sizes: Mapping[str, int], order: Sequence[str], group: dist.ProcessGroup
) -> dict[str, dist.ProcessGroup]:
    steps, ranks = strides(sizes, order), dist.get_world_size(group)
    if ranks != math.prod(sizes.values()):
        raise ValueError(f"expected {math.prod(sizes.values())} ranks, found {ranks}")
    here, mine = dist.get_rank(group), {}
    for axis in sizes:
        firsts = [r for r in range(ranks) if r // steps[axis] % sizes[axis] == 0]
        for first in firsts:
            members = list(range(first, first + steps[axis] * sizes[axis], steps[axis]))
            subgroup = dist.new_group([dist.get_global_rank(group, m) for m in members])
            mine |= {axis: subgroup} if here in members else {}
    return mine
