"""The best first part for each number of layers and devices left, to any depth: Python's limit is raised."""

import sys
from functools import cache


def partition_layers(costs, num_devices):
    if num_devices < 1:
        raise ValueError(f"expected one device or more, found {num_devices}")
    if any(cost < 0 for cost in costs):
        raise ValueError(f"expected costs of zero or more, found {min(costs)}")
    count = len(costs)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * (count + num_devices) + 1000))
    until = [0]
    for cost in costs:
        until.append(until[-1] + cost)

    @cache
    def best(first, devices):
        """The largest part of the layers from `first` on, and where its first part ends."""
        if devices == 1:
            return until[count] - until[first], count
        found = sys.float_info.max, count
        for cut in range(first, count + 1):
            own = until[cut] - until[first]
            if own > found[0]:
                break
            found = min(found, (max(own, best(cut, devices - 1)[0]), cut))
        return found

    parts, first = [], 0
    for devices in range(num_devices, 0, -1):
        _, cut = best(first, devices)
        parts.append(range(first, cut))
        first = cut
    return parts
