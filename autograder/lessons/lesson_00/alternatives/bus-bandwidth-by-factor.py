"""The algorithm's bandwidth times nccl-tests' factor."""


def bus_bandwidth(num_bytes: float, seconds: float, world_size: int) -> float:
    if seconds <= 0:
        raise ValueError(f"seconds must be positive: {seconds} (world_size {world_size})")
    if world_size < 1:
        raise ValueError(f"world_size must be positive: {world_size} (seconds {seconds})")
    algorithm = num_bytes / seconds
    factor = 2 * (world_size - 1) / world_size
    return algorithm * factor
