"""What one rank sends in all steps of the ring, over the time."""

from fractions import Fraction


def bus_bandwidth(num_bytes: float, seconds: float, world_size: int) -> float:
    if not (seconds > 0 and world_size > 0):
        raise ValueError(f"seconds {seconds}, world_size {world_size}: both must be above 0")
    share = Fraction(2 * world_size - 2, world_size)
    return float(share) * num_bytes / seconds
