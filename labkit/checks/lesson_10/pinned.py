"""Stand-in devices that look whether pinned memory is left alone while a copy from it is under way."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

import torch
from torch import Tensor

from labkit import devices
from labkit.checks.lesson_10.polled import PatientTimeline
from labkit.devices.machine import Machine
from labkit.devices.placement import HOST


@dataclass(frozen=True)
class Leaving:
    """A copy from pinned memory. values: what was to be copied. end: when it is done (time.monotonic())."""

    source: Tensor
    values: Tensor
    end: float

    @property
    def written_over(self) -> bool:
        """Whether something else is in that memory by now."""
        return not torch.equal(self.source, self.values)


class WatchfulMachine(Machine):
    """Counts what cannot show in the numbers: stand-ins compute at once when a GPU would still be at earlier
    work, and would copy later whatever the memory holds by then.

    written_over: how many copies from pinned memory would have brought something else.
    """

    def __init__(self, gpus: devices.StandIns, bytes_each: int, host_link: float) -> None:
        super().__init__(gpus.devices, bytes_each, True, host_link, gpus.transfers, PatientTimeline())
        self.written_over = 0
        self._under_way: list[Leaving] = []

    def copy_into(self, destination: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """As ever, after a look at the copies that are under way."""
        to, pinned = self.placement.home(destination), self.placement.is_pinned(source)
        with self.watcher.pause():
            self._look()
            values = source.detach().clone()
        copied = super().copy_into(destination, source, non_blocking)
        if to is not HOST and pinned and non_blocking:
            self._under_way.append(Leaving(source.detach(), values, self.queues.current(to).free_at))
        return copied

    def _look(self) -> None:
        now = monotonic()
        open_yet = [copy for copy in self._under_way if now < copy.end]
        self._under_way = [copy for copy in open_yet if not copy.written_over]
        self.written_over += len(open_yet) - len(self._under_way)
