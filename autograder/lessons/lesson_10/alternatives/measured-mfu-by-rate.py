from labkit.theory.flops import forward_flops


def seconds_per_step(
    step: Callable[[], object],
    synchronize: Callable[[], object],
    clock: Callable[[], float],
    warm_up: int,
    steps: int,
) -> float:
    def run(count: int) -> float:
        for _ in range(count):
            step()
        synchronize()
        return clock()

    return (-run(warm_up) + run(steps)) / steps


def measured_mfu(
    config: ModelConfig,
    batch: int,
    sequence: int,
    seconds: float,
    num_gpus: int,
    gpu: GPU,
    recompute: str,
) -> float:
    rate = 3 * forward_flops(config, sequence, batch).total / seconds
    return rate / num_gpus / gpu.dense_bf16
