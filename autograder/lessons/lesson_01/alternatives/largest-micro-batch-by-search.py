"""Sequences are added until the next one does not fit."""

from labkit.model import ModelConfig


def largest_micro_batch(
    config: ModelConfig, sequence: int, gpu_bytes: int, recipe: str = "adamw-mixed", recompute: str = "none"
) -> int:
    def needs(sequences: int) -> float:
        state = sum(training_state_bytes(count_parameters(config), recipe).values())
        kept = activation_bytes(config, sequence, sequences, recompute, fused_attention=True)
        return state + kept + 10 * sequences * sequence * config.vocabulary

    low, high = 0, 1
    while needs(high) <= 0.9 * gpu_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needs(middle) <= 0.9 * gpu_bytes else (low, middle)
    return low
