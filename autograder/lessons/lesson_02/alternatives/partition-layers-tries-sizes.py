"""The smallest of all possible largest parts into which filling device after device succeeds."""


def partition_layers(costs, num_devices):
    if num_devices < 1:
        raise ValueError(f"expected one device or more, found {num_devices}")
    negative = [cost for cost in costs if cost < 0]
    if negative:
        raise ValueError(f"negative costs: {negative}")
    n, sums = len(costs), [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    sizes = sorted({sums[j] - sums[i] for i in range(n + 1) for j in range(i, n + 1)})

    def filled(most):
        parts, start = [], 0
        for _ in range(num_devices):
            stop = start
            while stop < n and sums[stop + 1] - sums[start] <= most:
                stop += 1
            parts.append(range(start, stop))
            start = stop
        return parts if start == n else None

    low, high = 0, len(sizes) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if filled(sizes[middle]) else (middle + 1, high)
    return filled(sizes[low])
