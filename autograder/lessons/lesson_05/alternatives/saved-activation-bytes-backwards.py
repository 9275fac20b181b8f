"""Backward, segment by segment from the last."""


def saved_activation_bytes(lengths, boundary_bytes, layer_bytes):
    if len(lengths) == 0:
        raise ValueError("a chain has a segment at least")
    boundaries, most = len(lengths), 0
    for length in reversed(lengths):
        boundaries -= 1
        most = max(most, boundary_bytes * boundaries + layer_bytes * length)
    return most
