"""What is queued on the streams of stand-in devices, and when it is done.

Values are computed at once, whatever the time. What is imitated is the order a program may rely on: work
queued on a stream takes its time there while the host goes on, a stream waits for another only when told to,
and a copy that was asked for with `non_blocking=True` has not arrived until somebody waited for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from labkit.devices.messages import no_such_device


@dataclass(frozen=True)
class Busy:
    """A stretch of time one stream of a device was at work; seconds since the session opened."""

    device: int
    stream: int  # 0 is the default stream
    name: str
    kind: str
    start: float
    end: float


class LateCopy:
    """A copy that arrives when it is waited for, by the host or on the device that it is queued on."""

    def __init__(self, device: int, copy: Callable[[], None]) -> None:
        self.device = device
        self._copy: Callable[[], None] | None = copy

    def arrive(self) -> None:
        """Carry the copy out; nothing the second time."""
        copy, self._copy = self._copy, None
        if copy is not None:
            copy()


class Timeline:
    """When devices were at work. opened_at: the time.monotonic() that its seconds count from. host_waits: how
    often the host waited for a device.
    """

    def __init__(self) -> None:
        self.opened_at = 0.0
        self.host_waits = 0
        self.busy: list[Busy] = []

    def note(self, queue: Queue, name: str, kind: str, start: float, end: float) -> None:
        """A queue is at work from `start` to `end` (time.monotonic())."""
        since = self.opened_at
        self.busy.append(Busy(queue.device, queue.number, name, kind, start - since, end - since))


class Queue:
    """What is queued on one stream of one device."""

    def __init__(self, timeline: Timeline, device: int, number: int) -> None:
        self.timeline, self.device, self.number = timeline, device, number
        self.free_at = 0.0  # time.monotonic() when the work queued so far is done
        self.to_device: list[LateCopy] = []
        self.to_host: list[LateCopy] = []
        self._elsewhere: list[LateCopy] = []  # to other devices, whose own streams may not have waited

    @property
    def before(self) -> list[LateCopy]:
        """The copies to devices that what is queued here from now on comes after."""
        return [*self.to_device, *self._elsewhere]

    def wait_for(self, copies: Iterable[LateCopy]) -> None:
        """What is queued here from now on comes after these. Those to another device have not arrived for
        what works there, unless it waits for something that is queued here.
        """
        for copy in copies:
            if copy.device == self.device:
                copy.arrive()
            else:
                self._elsewhere.append(copy)

    def add(self, seconds: float, name: str, kind: str) -> None:
        """Queue work of a fixed duration."""
        start = max(time.monotonic(), self.free_at)
        self.free_at = start + seconds
        self.timeline.note(self, name, kind, start, self.free_at)

    def not_before(self, moment: float) -> None:
        """What is queued from now on starts no earlier than `moment`."""
        self.free_at = max(self.free_at, moment)

    def reach(self) -> None:
        """Copies to the device that were queued here come before what is queued next."""
        while self.to_device:
            self.to_device.pop(0).arrive()

    def finish(self) -> None:
        """The host waits until everything queued here is done."""
        self.timeline.host_waits += 1
        time.sleep(max(0.0, self.free_at - time.monotonic()))
        self.reach()
        for others in (self.to_host, self._elsewhere):
            while others:
                others.pop(0).arrive()


class Queues:
    """The queues of some devices, which of them are current, and which device is."""

    def __init__(self, devices: list[torch.device]) -> None:
        self.devices = devices
        self.timeline = Timeline()
        self.current_device = 0
        self._all = [Queue(self.timeline, index, 0) for index in range(len(devices))]
        self._current = list(self._all)
        self._made = 0

    def index_of(self, device: Any = None) -> int:
        """The index of a device given in any form torch takes; of the current one for None."""
        if device is None:
            return self.current_device
        named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        index = self.current_device if named.index is None else named.index
        if index >= len(self.devices):
            raise no_such_device(index, len(self.devices))
        return index

    def new(self, index: int) -> Queue:
        """Another stream of a device."""
        self._made += 1
        queue = Queue(self.timeline, index, self._made)
        self._all.append(queue)
        return queue

    def current(self, index: int | None = None) -> Queue:
        """The current stream of a device."""
        return self._current[self.current_device if index is None else index]

    def default(self, index: int) -> Queue:
        """The stream a device works on when no other is chosen."""
        return self._all[index]

    def enter(self, queue: Queue) -> tuple[int, Queue]:
        """Make a stream, and its device, the current one; what to give `leave` afterwards."""
        before = (self.current_device, self._current[queue.device])
        self.current_device, self._current[queue.device] = queue.device, queue
        return before

    def leave(self, before: tuple[int, Queue]) -> None:
        """Undo `enter`."""
        self.current_device, queue = before
        self._current[queue.device] = queue

    def finish(self, index: int) -> None:
        """The host waits for every stream of a device, which is one wait."""
        before = self.timeline.host_waits
        for queue in self._all:
            if queue.device == index:
                queue.finish()
        self.timeline.host_waits = before + 1
