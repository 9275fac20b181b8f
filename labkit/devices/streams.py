"""Streams, events and time on stand-in devices.

Values are computed at once, whatever the time. What is imitated is the order a program may rely on: work
queued on a stream takes its time there while the host goes on, a stream waits for another only when told to,
and a copy that was asked for with `non_blocking=True` has not arrived until somebody waited for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.devices.session import StandIns


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
    """A copy that arrives when it is waited for."""

    def __init__(self, copy: Callable[[], None]) -> None:
        self._copy: Callable[[], None] | None = copy

    def arrive(self) -> None:
        """Carry the copy out; nothing the second time."""
        copy, self._copy = self._copy, None
        if copy is not None:
            copy()


class Queue:
    """What is queued on one stream of one device."""

    def __init__(self, session: StandIns, device: int, number: int) -> None:
        self.session, self.device, self.number = session, device, number
        self.free_at = 0.0  # time.monotonic() when the work queued so far is done
        self.to_device: list[LateCopy] = []
        self.to_host: list[LateCopy] = []

    def add(self, seconds: float, name: str, kind: str) -> None:
        """Queue work of a fixed duration."""
        start = max(time.monotonic(), self.free_at)
        self.free_at = start + seconds
        since = self.session.opened_at
        self.session.timeline.append(
            Busy(self.device, self.number, name, kind, start - since, self.free_at - since)
        )

    def not_before(self, moment: float) -> None:
        """What is queued from now on starts no earlier than `moment`."""
        self.free_at = max(self.free_at, moment)

    def reach(self) -> None:
        """Copies to the device that were queued here come before what is queued next."""
        while self.to_device:
            self.to_device.pop(0).arrive()

    def finish(self) -> None:
        """The host waits until everything queued here is done."""
        time.sleep(max(0.0, self.free_at - time.monotonic()))
        self.reach()
        while self.to_host:
            self.to_host.pop(0).arrive()


class Stream:
    """Stands in for torch.cuda.Stream."""

    def __init__(self, session: StandIns, device: object = None, queue: Queue | None = None) -> None:
        self._session = session
        self.queue = queue or session.new_queue(session.index_of(device))

    @property
    def device(self) -> object:
        return self._session.devices[self.queue.device]

    @property
    def device_index(self) -> int:
        return self.queue.device

    def wait_stream(self, stream: Stream) -> None:
        """What is queued here from now on comes after what is queued on `stream` by now."""
        stream.queue.reach()
        self.queue.not_before(stream.queue.free_at)

    def wait_event(self, event: Event) -> None:
        """What is queued here from now on comes after `event`."""
        event.reach()
        self.queue.not_before(event.moment)

    def record_event(self, event: Event | None = None) -> Event:
        """An event that happens when what is queued here by now is done."""
        event = event or Event(self._session)
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for this stream."""
        self.queue.finish()

    def query(self) -> bool:
        """Whether everything queued here is done."""
        return time.monotonic() >= self.queue.free_at

    def __enter__(self) -> Stream:
        self._before = self._session.enter_queue(self.queue)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._session.leave_queue(self._before)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.queue is self.queue

    def __hash__(self) -> int:
        return id(self.queue)

    def __repr__(self) -> str:
        return f"<stand-in for torch.cuda.Stream {self.queue.number} of {self.device}>"


class Event:
    """Stands in for torch.cuda.Event."""

    def __init__(self, session: StandIns, enable_timing: bool = False, **_: object) -> None:
        self._session, self._timed = session, enable_timing
        self.moment = 0.0
        self._before: list[LateCopy] = []
        self._host: list[LateCopy] = []

    def record(self, stream: Stream | None = None) -> None:
        """The event happens when what is queued on `stream` (the current one) by now is done."""
        queue = stream.queue if stream is not None else self._session.queue()
        self.moment = max(time.monotonic(), queue.free_at)
        self._before, self._host = list(queue.to_device), list(queue.to_host)

    def reach(self) -> None:
        """The copies to the device that the event comes after have arrived."""
        for copy in self._before:
            copy.arrive()

    def wait(self, stream: Stream | None = None) -> None:
        """`stream` (the current one) waits for the event."""
        self.reach()
        (stream.queue if stream is not None else self._session.queue()).not_before(self.moment)

    def synchronize(self) -> None:
        """The host waits for the event."""
        time.sleep(max(0.0, self.moment - time.monotonic()))
        for copy in (*self._before, *self._host):
            copy.arrive()

    def query(self) -> bool:
        """Whether the event has happened."""
        return time.monotonic() >= self.moment

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        if not (self._timed and end._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        return (end.moment - self.moment) * 1000
