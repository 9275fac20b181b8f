def flat_layout(numels: Sequence[int], world_size: int) -> tuple[int, list[list[tuple[int, int, int]]]]:
    if world_size <= 0:
        raise ValueError("no ranks")
    elements = [(parameter, i) for parameter, numel in enumerate(numels) for i in range(numel)]
    size = -(-len(elements) // world_size)
    pieces: list[list[tuple[int, int, int]]] = [[] for _ in range(world_size)]
    for rank in range(world_size):
        for parameter, i in elements[rank * size : (rank + 1) * size]:
            if pieces[rank] and pieces[rank][-1][0] == parameter:
                pieces[rank][-1] = (parameter, pieces[rank][-1][1], i + 1)
            else:
                pieces[rank].append((parameter, i, i + 1))
    return size, pieces
