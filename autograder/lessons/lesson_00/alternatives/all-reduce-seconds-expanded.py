"""The latency and the bandwidth term apart."""


def all_reduce_seconds(num_bytes: float, world_size: int, alpha: float, beta: float) -> float:
    if world_size < 1:
        raise ValueError(f"num_bytes {num_bytes}, world_size {world_size}: needs at least one rank")
    if num_bytes < 0:
        raise ValueError(f"num_bytes {num_bytes}, world_size {world_size}: needs bytes from 0")
    n = world_size
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * num_bytes * beta
