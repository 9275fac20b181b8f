def step_traffic(
    numels: Sequence[int], stage: int, world_size: int, micro_batches: int = 1, regather: bool = True
) -> int:
    if world_size < 1 or micro_batches < 1:
        raise ValueError("at least one rank and one micro-batch")
    model = (world_size - 1) * -(-sum(numels) // world_size)
    units = sum((world_size - 1) * -(-n // world_size) for n in numels)
    match stage:
        case 0 | 1:
            return 2 * model
        case 2:
            return units * micro_batches + units
        case 3:
            return units * micro_batches * (2 + int(regather))
    raise ValueError(f"stage {stage}")
