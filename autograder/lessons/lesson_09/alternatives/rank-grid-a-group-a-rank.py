import numpy as np


def shape_of(sizes: Mapping[str, int], order: Sequence[str]) -> list[int]:
    if sorted(order) != sorted(sizes):
        raise ValueError(f"{order} is no order of {sizes}")
    return [sizes[axis] for axis in order]


def rank_to_coordinates(rank: int, sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    shape = shape_of(sizes, order)
    if not 0 <= rank < np.prod(shape):
        raise ValueError(f"rank {rank} of {np.prod(shape)}")
    places = np.stack(np.unravel_index(rank, shape)).tolist()
    return dict(zip(order, places, strict=True))


def coordinates_to_rank(
    coordinates: Mapping[str, int], sizes: Mapping[str, int], order: Sequence[str]
) -> int:
    for axis, place in coordinates.items():
        if place not in range(sizes[axis]):
            raise ValueError(f"{axis} has no place {place}")
    return np.ravel_multi_index([coordinates[axis] for axis in order], shape_of(sizes, order))


def build_groups(
    sizes: Mapping[str, int], order: Sequence[str], group: dist.ProcessGroup
) -> dict[str, dist.ProcessGroup]:
    """The groups of one rank after those of another: most are made more than once, and the last ones used."""
    ranks = np.arange(dist.get_world_size(group))
    if ranks.size != np.prod(shape_of(sizes, order)):
        raise ValueError(f"{np.prod(shape_of(sizes, order))} places for {ranks.size} ranks")
    places = [rank_to_coordinates(rank, sizes, order) for rank in ranks]
    mine = {}
    for rank, axis in product(ranks, order):
        others = [other for other in order if other != axis]
        members = [int(r) for r in ranks if all(places[r][o] == places[rank][o] for o in others)]
        made = dist.new_group(members)
        if dist.get_rank(group) in members:
            mine[axis] = made
    return mine
