"""Seeds torch's own generators, as a check does on every rank before every case."""

from __future__ import annotations

import torch


def seed_generators(seed: int) -> None:
    """As `torch.manual_seed`, for the devices that are in use.

    For each kind of device that could be, but is not, torch's own notes the seed with a traceback, whose
    lines are read from files: 10 ms in a process that has just been forked.
    """
    if torch.cuda.is_initialized():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
