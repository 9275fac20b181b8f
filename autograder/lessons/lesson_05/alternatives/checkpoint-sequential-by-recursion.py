"""The first segment, then the rest in one segment less."""

from torch import nn


def checkpoint_sequential(layers, x, segments):
    layers = list(layers)
    if not segments or not 1 <= segments <= len(layers):
        raise ValueError(f"{len(layers)} layers do not make {segments} segments")
    length = -(-len(layers) // segments)
    x = checkpoint(nn.Sequential(*layers[:length]), x)
    return x if segments == 1 else checkpoint_sequential(layers[length:], x, segments - 1)
