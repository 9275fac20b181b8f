def seconds_per_step(
    step: Callable[[], object],
    synchronize: Callable[[], object],
    clock: Callable[[], float],
    warm_up: int,
    steps: int,
) -> float:
    begin = 0.0
    for number in range(warm_up + steps):
        if number == warm_up:
            synchronize()
            begin = clock()
        step()
    synchronize()
    end = clock()
    return (end - begin) / steps


def measured_mfu(
    config: ModelConfig,
    batch: int,
    sequence: int,
    seconds: float,
    num_gpus: int,
    gpu: GPU,
    recompute: str,
) -> float:
    h, layers, tokens = config.hidden, config.num_layers, batch * sequence
    forward = tokens * (24 * layers * h**2 + 4 * layers * sequence * h + 2 * h * config.vocabulary)
    return 3 * forward / seconds / (num_gpus * gpu.dense_bf16)
