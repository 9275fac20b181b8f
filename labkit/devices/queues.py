"""What is queued on the streams of stand-in devices, and when it is done.

Values are computed at once, whatever the time. What is imitated is the order a program may rely on: work
queued on a stream takes its time there while the host goes on, a stream waits for another only when told to,
and a copy that was asked for with `non_blocking=True` has not arrived until somebody waited for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from labkit.devices.messages import no_such_device, not_cuda


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
    """A copy that arrives when it is waited for, by the host or on the device that it is queued on.

    stream: the number of that queue. memory: a number of the storage that it goes to, as `storage_key` has
    it.
    """

    def __init__(self, device: int, stream: int, memory: int, copy: Callable[[], None]) -> None:
        self.device, self.stream, self.memory = device, stream, memory
        self._copy: Callable[[], None] | None = copy

    @property
    def has_arrived(self) -> bool:
        """Whether it was carried out."""
        return self._copy is None

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
        self._asked_in_vain: set[float] = set()  # moments, and nothing has been queued since

    def note(self, queue: Queue, name: str, kind: str, start: float, end: float) -> None:
        """A queue is at work from `start` to `end` (time.monotonic())."""
        since = self.opened_at
        self.goes_on()
        self.busy.append(Busy(queue.device, queue.number, name, kind, start - since, end - since))

    def goes_on(self) -> None:
        """The host queues something: it does not stand and ask."""
        self._asked_in_vain.clear()

    def has_come(self, moment: float) -> bool:
        """Whether it is `moment` (time.monotonic()) by now. Who asks until it is has waited, once."""
        come = time.monotonic() >= moment
        if not come:
            self._asked_in_vain.add(moment)
        elif moment in self._asked_in_vain:
            self._asked_in_vain.discard(moment)
            self.host_waits += 1
        return come


class Queue:
    """What is queued on one stream of one device."""

    def __init__(self, timeline: Timeline, device: int, number: int) -> None:
        self.timeline, self.device, self.number = timeline, device, number
        self.free_at = 0.0  # time.monotonic() when the work queued so far is done
        self.to_device: list[LateCopy] = []
        self.to_host: list[LateCopy] = []  # queued here, or on a stream that this one has waited for
        self._elsewhere: list[LateCopy] = []  # to other devices, whose own streams may not have waited

    @property
    def before(self) -> Before:
        """The copies that what is queued here from now on comes after."""
        return Before((*self.to_device, *self._elsewhere), tuple(self.to_host))

    def wait_for(self, before: Before) -> None:
        """What is queued here from now on comes after these. Those to another device have not arrived for
        what works there, those of this very queue not for other queues, and those to the host not for the
        host, unless it waits for something that is queued here.
        """
        for copy in before.to_devices:
            if copy.device == self.device and copy.stream != self.number:
                copy.arrive()
        self._elsewhere = _under_way(self._elsewhere, before.to_devices)
        self.to_host = _under_way(self.to_host, before.to_host)

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
        self.timeline.goes_on()
        while self.to_device:
            self.to_device.pop(0).arrive()

    def finish(self) -> None:
        """The host waits until everything queued here is done."""
        self.timeline.host_waits += 1
        time.sleep(max(0.0, self.free_at - time.monotonic()))
        self.arrive()

    def arrive(self) -> None:
        """All that is queued here is done, and the host knows it."""
        self.reach()
        for others in (self.to_host, self._elsewhere):
            while others:
                others.pop(0).arrive()


@dataclass(frozen=True)
class Before:
    """The copies that something comes after, in their order."""

    to_devices: tuple[LateCopy, ...] = ()
    to_host: tuple[LateCopy, ...] = ()

    def arrive(self) -> None:
        """The host knows that they are done."""
        for copy in (*self.to_devices, *self.to_host):
            copy.arrive()


def _under_way(*copies: Iterable[LateCopy]) -> list[LateCopy]:
    """Those that have not arrived, each once: two streams may wait for one another again and again."""
    return [copy for copy in dict.fromkeys(chain(*copies)) if not copy.has_arrived]


class Queues:
    """The queues of some devices, which of them are current, and which device is."""

    def __init__(self, devices: list[torch.device], timeline: Timeline | None = None) -> None:
        self.devices = devices
        self.timeline = timeline or Timeline()
        self.current_device = 0
        self._all = [Queue(self.timeline, index, 0) for index in range(len(devices))]
        self._current = list(self._all)
        self._made = 0

    def index_of(self, device: Any = None) -> int:
        """The index of a device given in any form torch takes; of the current one for None. ValueError, in
        CUDA's words, for the host.
        """
        if device is None:
            return self.current_device
        named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if named.type != "cuda":
            raise not_cuda(named)
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
