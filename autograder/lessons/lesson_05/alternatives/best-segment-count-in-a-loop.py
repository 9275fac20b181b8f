"""Every number of segments in turn; a later one must be better to be taken."""


def best_segment_count(num_layers, boundary_bytes, layer_bytes):
    best, lowest = 0, float("inf")
    for segments in range(1, num_layers + 1):
        peak = 0
        for before in range(segments):
            length = num_layers // segments + (1 if before < num_layers % segments else 0)
            peak = max(peak, before * boundary_bytes + length * layer_bytes)
        if peak < lowest:
            best, lowest = segments, peak
    return best
