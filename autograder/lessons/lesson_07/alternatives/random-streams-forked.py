"""The generator is forked for each block, and its state taken out again before the block ends."""

import contextlib

import torch


class RandomStreams:
    def __init__(self, seed, group):
        self.generators = {"all": torch.Generator().manual_seed(seed + 17)}
        self.generators["mine"] = torch.Generator().manual_seed((seed + 18) * 100_003 + group.rank() + 1)

    @contextlib.contextmanager
    def _inside(self, name):
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(self.generators[name].get_state())
            try:
                yield
            finally:
                self.generators[name].set_state(torch.random.get_rng_state())

    def shared(self):
        return self._inside("all")

    def own(self):
        return self._inside("mine")
