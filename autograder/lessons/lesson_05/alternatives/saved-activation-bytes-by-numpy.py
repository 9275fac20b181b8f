"""All moments at once, in NumPy's whole numbers."""

import numpy as np


def saved_activation_bytes(lengths, boundary_bytes, layer_bytes):
    if len(lengths) == 0:
        raise ValueError("a chain without segments holds nothing that could be asked for")
    lengths = np.asarray(lengths, dtype=np.int64)
    return (np.arange(lengths.size) * boundary_bytes + lengths * layer_bytes).max()
