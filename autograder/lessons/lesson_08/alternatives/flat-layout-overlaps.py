def flat_layout(numels: Sequence[int], world_size: int) -> tuple[int, list[list[tuple[int, int, int]]]]:
    if world_size < 1:
        raise ValueError(f"{world_size} ranks")
    size = (sum(numels) + world_size - 1) // world_size
    pieces = []
    for rank in range(world_size):
        low, high, at, own = rank * size, (rank + 1) * size, 0, []
        for parameter, numel in enumerate(numels):
            first, last = max(low, at), min(high, at + numel)
            if first < last:
                own.append((parameter, first - at, last - at))
            at += numel
        pieces.append(own)
    return size, pieces
