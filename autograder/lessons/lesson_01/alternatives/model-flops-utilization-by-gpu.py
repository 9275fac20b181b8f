"""What one GPU did in a second, over what it can do."""


def model_flops_utilization(config, sequence, batch, seconds, num_gpus, gpu) -> float:
    each = train_step_flops(config, sequence, batch) / num_gpus
    return each / seconds / gpu.dense_bf16
