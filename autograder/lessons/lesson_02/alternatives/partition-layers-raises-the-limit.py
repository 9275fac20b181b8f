"""Fills device after device up to a limit, raised to the least that changes anything, in exact fractions."""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise


@dataclass
class _Part:
    first: int
    layers: list = field(default_factory=list)

    @property
    def total(self):
        return sum(self.layers, Fraction(0))


def partition_layers(costs, num_devices):
    if num_devices < 1:
        raise ValueError(f"there must be a device, not {num_devices}")
    for number, cost in enumerate(costs):
        if cost < 0:
            raise ValueError(f"layer {number} costs {cost}")
    exact = [Fraction(cost) for cost in costs]
    limit = max([*exact, sum(exact, Fraction(0)) / num_devices])
    while len(parts := _filled(exact, limit)) > num_devices:
        limit = min(part.total + after.layers[0] for part, after in pairwise(parts))
    ranges = [range(part.first, part.first + len(part.layers)) for part in parts]
    return ranges + [range(len(exact), len(exact)) for _ in range(num_devices - len(ranges))]


def _filled(costs, limit):
    parts, room = [_Part(0)], limit
    for number, cost in enumerate(costs):
        if cost > room:
            parts.append(_Part(number))
            room = limit
        parts[-1].layers.append(cost)
        room -= cost
    return parts
