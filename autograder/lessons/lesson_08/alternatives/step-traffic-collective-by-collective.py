def step_traffic(
    numels: Sequence[int], stage: int, world_size: int, micro_batches: int = 1, regather: bool = True
) -> int:
    if stage not in (0, 1, 2, 3) or min(world_size, micro_batches) < 1:
        raise ValueError("stage, world_size or micro_batches")

    def scatter(n: int) -> int:
        return (world_size - 1) * ((n + world_size - 1) // world_size)

    if stage < 2:
        return scatter(sum(numels)) + scatter(sum(numels))
    sent = 0
    for n in numels:
        for _ in range(micro_batches):
            sent += scatter(n)
            if stage == 3:
                sent += scatter(n)
                sent += scatter(n) if regather else 0
        sent += scatter(n) if stage == 2 else 0
    return sent
