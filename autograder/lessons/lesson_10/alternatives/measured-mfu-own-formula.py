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
    h, queries = config.hidden, config.query_width
    projections = 2 * h * (queries + config.kv_width)
    mlp = (3 if config.gated_mlp else 2) * h * config.ffn
    layer = projections + mlp + 2 * sequence * queries
    forward = 2 * batch * sequence * (config.num_layers * layer + h * config.vocabulary)
    return 3 * forward / seconds / (num_gpus * gpu.dense_bf16)
