"""The index of the smallest peak; only two segments of each length can be it."""


def best_segment_count(num_layers: int, boundary_bytes: int, layer_bytes: int) -> int:
    peaks = []
    for k in range(1, num_layers + 1):
        short, longer = divmod(num_layers, k)
        last_long = (longer - 1) * boundary_bytes + (short + 1) * layer_bytes if longer else 0
        peaks.append(max(last_long, (k - 1) * boundary_bytes + short * layer_bytes))
    return 1 + peaks.index(min(peaks))
