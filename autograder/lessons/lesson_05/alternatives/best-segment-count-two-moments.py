"""Only the last of the longer segments and the last of all can be the highest moment: these, compared."""

from math import ceil


def best_segment_count(num_layers, boundary_bytes, layer_bytes):
    best = None
    for segments in reversed(range(1, num_layers + 1)):
        long, short = ceil(num_layers / segments), num_layers // segments
        longer = num_layers - short * segments
        moments = [(segments - 1) * boundary_bytes + short * layer_bytes]
        if longer:
            moments.append((longer - 1) * boundary_bytes + long * layer_bytes)
        candidate = max(moments), segments
        best = candidate if best is None else min(best, candidate)
    return best[1]
