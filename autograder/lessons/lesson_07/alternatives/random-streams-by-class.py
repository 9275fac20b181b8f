"""A context manager of its own class."""

import torch
import torch.distributed as dist


class _Stream:
    def __init__(self, seed):
        self.state = torch.Generator().manual_seed(seed).get_state()

    def __enter__(self):
        self.outside = torch.get_rng_state()
        torch.set_rng_state(self.state)

    def __exit__(self, *error):
        self.state = torch.get_rng_state()
        torch.set_rng_state(self.outside)
        return False


class RandomStreams:
    def __init__(self, seed, group):
        self._shared = _Stream(seed * 4096)
        self._own = _Stream(seed * 4096 + 1 + dist.get_rank(group))

    def shared(self):
        return self._shared

    def own(self):
        return self._own
