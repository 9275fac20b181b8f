"""Bounds by rounding, and a module of its own that runs the layers between two of them."""

from functools import reduce
from itertools import pairwise

from torch import nn


class _Part(nn.ModuleList):
    def forward(self, value):
        return reduce(lambda out, layer: layer(out), self, value)


def checkpoint_sequential(layers, x, segments):
    count = len(layers)
    if segments < 1 or segments > count:
        raise ValueError(f"cannot make {segments} segments of {count} layers")
    bounds = [number * count // segments for number in range(segments + 1)]
    for first, last in pairwise(bounds):
        x = checkpoint(_Part(layers[first:last]), x)
    return x
