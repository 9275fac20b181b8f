"""A stream is chosen first."""

import math

import torch


def initial_weight(shape, cut, streams, group):
    own = torch.Size(shape)
    stream = streams.shared
    if cut is not None:
        size = group.size()
        if own[cut] % size != 0:
            raise ValueError(f"{own[cut]} numbers among {size} ranks")
        own = torch.Size(n // size if dim == cut else n for dim, n in enumerate(own))
        stream = streams.own
    with stream():
        weight = torch.randn(*own)
    return weight.div_(math.sqrt(shape[1]))
