"""The time the step would take at peak, over the time it took."""


def model_flops_utilization(config, sequence, batch, seconds, num_gpus, gpu) -> float:
    at_peak = train_step_flops(config, sequence, batch, recompute="none") / (gpu.dense_bf16 * num_gpus)
    return at_peak / seconds
