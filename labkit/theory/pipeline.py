"""How many micro-batches a pipeline stage holds at once, and which layers it owns."""

from __future__ import annotations

from typing import Literal

Schedule = Literal["gpipe", "1f1b", "interleaved"]


def in_flight(
    schedule: Schedule, stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 1
) -> float:
    """Micro-batches whose activations stage `stage` (from 0) holds at its peak, in units of all its layers.

    GPipe: all m. 1F1B: p - r, or m if there are fewer (Narayanan SC21, section 2.2.1). Interleaved: the first
    stage holds p + (p-1)/v (Korthikanti 2022, section 4.2.3); the others, two chunks less for each stage
    further on.
    """
    if not 0 <= stage < num_stages:
        raise ValueError(f"stage must be 0..{num_stages - 1}, got {stage}")
    if schedule == "gpipe":
        return num_micro_batches
    if schedule == "1f1b":
        return min(num_micro_batches, num_stages - stage)
    if schedule != "interleaved":
        raise ValueError(f'schedule must be "gpipe", "1f1b" or "interleaved", got {schedule!r}')
    if num_micro_batches % num_stages:
        raise ValueError(
            f"interleaving needs a multiple of {num_stages} micro-batches, got {num_micro_batches}"
        )
    warm_up = 2 * (num_stages - stage - 1) + (num_chunks - 1) * num_stages
    return min(num_chunks * num_micro_batches, warm_up + 1) / num_chunks


def layers_of_stages(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Layers per stage, as equal as they go; where they do not divide, the first stages get one more.

    With more stages than layers the last ones have none: they hand on what they get, or hold the head alone.
    """
    if num_stages < 1:
        raise ValueError(f"num_stages must be 1 or more, got {num_stages}")
    share, over = divmod(num_layers, num_stages)
    return tuple(share + (stage < over) for stage in range(num_stages))


def bubble_over_ideal(num_stages: int, num_micro_batches: int, num_chunks: int = 1) -> float:
    """Idle time over ideal time: (p-1)/(vm) (Narayanan SC21, section 2.2)."""
    return (num_stages - 1) / (num_chunks * num_micro_batches)


def bubble_of_total(num_stages: int, num_micro_batches: int, num_chunks: int = 1) -> float:
    """Idle time over total time: r/(1+r), which is (p-1)/(m+p-1) without chunks (GPipe, section 2.3)."""
    ratio = bubble_over_ideal(num_stages, num_micro_batches, num_chunks)
    return ratio / (1 + ratio)
