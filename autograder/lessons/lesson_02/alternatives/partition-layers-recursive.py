"""The best cut of what is left, for every number of devices, remembered."""

from functools import cache
from itertools import accumulate


def partition_layers(costs, num_devices):
    if num_devices < 1:
        raise ValueError(f"{num_devices} devices are too few")
    for cost in costs:
        if cost < 0:
            raise ValueError(f"a cost of {cost} is negative")
    sums, n = [0, *accumulate(costs)], len(costs)

    @cache
    def best(first, devices):
        if devices == 1:
            return sums[n] - sums[first], n
        return min(
            (max(sums[cut] - sums[first], best(cut, devices - 1)[0]), cut) for cut in range(first, n + 1)
        )

    found, start = [], 0
    for devices in range(num_devices, 0, -1):
        stop = best(start, devices)[1]
        found.append(range(start, stop))
        start = stop
    return found
