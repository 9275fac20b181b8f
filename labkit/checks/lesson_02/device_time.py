"""When streams of stand-in devices work beside each other, on a clock that no busy machine moves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import pairwise

from torch import nn

from labkit.devices import Busy, FixedTime, queues, session, streams

HOST_LINK = 2**16  # bytes a second between the host and a device
FORWARD = 1.0  # seconds of a layer's kernels, and twice that in backward: more than its weights need to come
LOOK = 1e-3  # seconds a host needs to look at the clock: who asks again and again gets an answer
ARRIVING = "to device"  # what a timeline calls a copy from the host


class OwnClock:
    """A clock that goes on where somebody looks at it, and where the host waits: then it waits no longer."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Seconds since it was made."""
        self.now += LOOK
        return self.now

    def sleep(self, seconds: float) -> None:
        """The host waits, and it is later at once."""
        self.now += seconds


@contextlib.contextmanager
def on_a_clock_of_their_own() -> Iterator[None]:
    """Inside, stand-in devices that are opened here have a clock which only waiting for them moves."""
    modules, clock = (queues, session, streams), OwnClock()
    before = [vars(module)["time"] for module in modules]
    for module in modules:
        vars(module)["time"] = clock
    try:
        yield
    finally:
        for module, time in zip(modules, before, strict=True):
            vars(module)["time"] = time


def give_kernels(layer: nn.Module) -> None:
    """From now on the layer keeps its device at work for a time, whenever it runs and in its backward."""
    kernels = FixedTime(FORWARD)
    layer.register_forward_pre_hook(lambda _, given: (kernels(given[0]),))


def seconds_beside_work(busy: Sequence[Busy]) -> float:
    """For how long copies to a device were on their way while it did something else too."""
    moments = sorted({moment for one in busy for moment in (one.start, one.end)})
    found = 0.0
    for start, end in pairwise(moments):
        going_on = {one.name == ARRIVING for one in busy if one.start <= start and end <= one.end}
        found += (end - start) * (going_on == {True, False})
    return found
