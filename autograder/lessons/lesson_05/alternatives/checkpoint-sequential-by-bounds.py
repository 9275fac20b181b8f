"""Bounds by rounding, and a function that runs the layers between two of them."""

from functools import reduce
from itertools import pairwise


def checkpoint_sequential(layers, x, segments):
    count = len(layers)
    if segments < 1 or segments > count:
        raise ValueError(f"cannot make {segments} segments of {count} layers")
    bounds = [number * count // segments for number in range(segments + 1)]
    for first, last in pairwise(bounds):
        own = layers[first:last]
        x = checkpoint(lambda value, own=own: reduce(lambda out, layer: layer(out), own, value), x)
    return x
