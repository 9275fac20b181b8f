"""Reduce-scatter, then all-gather: n - 1 steps each."""


def all_reduce_seconds(num_bytes: float, world_size: int, alpha: float, beta: float) -> float:
    if not (world_size >= 1 and num_bytes >= 0):
        raise ValueError(f"a ring of {world_size} ranks and {num_bytes} bytes: there is no such thing")
    seconds = 0.0
    for _phase in ("reduce-scatter", "all-gather"):
        for _step in range(world_size - 1):
            seconds += alpha + beta * num_bytes / world_size
    return seconds
