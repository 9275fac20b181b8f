"""The sizes by floor and remainder; the scale through normal_."""

import torch
import torch.distributed as dist


def initial_weight(shape, cut, streams, group):
    size = dist.get_world_size(group)
    rows, columns = shape
    std = columns**-0.5
    if cut is None:
        with streams.shared():
            return torch.empty(rows, columns).normal_(0.0, std)
    each, left = divmod(shape[cut], size)
    if left:
        raise ValueError(f"cannot cut {shape[cut]} into {size}")
    own = (each, columns) if cut == 0 else (rows, each)
    with streams.own():
        return torch.normal(0.0, std, size=own)
