"""What is free, over what a sequence needs."""

import math

from labkit.model import ModelConfig


def largest_micro_batch(
    config: ModelConfig, sequence: int, gpu_bytes: int, recipe: str = "adamw-mixed", recompute: str = "none"
) -> int:
    free = gpu_bytes * 0.9
    for part in training_state_bytes(count_parameters(config), recipe).values():
        free -= part
    if free < 0:
        return 0
    logits = sequence * config.vocabulary * 10
    return math.floor(free / (activation_bytes(config, sequence, 1, recompute, 1, False, True) + logits))
