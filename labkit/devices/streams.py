"""What stands in for torch.cuda.Stream and torch.cuda.Event.

What these have beside torch's own names begins with `_labkit`: a program that reads that works on no GPU, and
grading flags it.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import ClassVar

from labkit.devices.queues import Before, Queue, Queues


def kinds_of(queues: Queues) -> tuple[type[Stream], type[Event]]:
    """What stands in for torch.cuda.Stream and torch.cuda.Event on these queues: classes, as programs write
    `torch.cuda.Stream | None` and ask isinstance.
    """
    event = type("Event", (Event,), {"_labkit_queues": queues})
    return type("Stream", (Stream,), {"_labkit_queues": queues, "_event": event}), event


class Stream:
    """Stands in for torch.cuda.Stream. queue: what it is a name for; a new one where none is given."""

    _labkit_queues: ClassVar[Queues]
    _event: ClassVar[type[Event]]

    def __init__(self, device: object = None, priority: int = 0, *, queue: Queue | None = None) -> None:
        self._labkit_queue = queue or self._labkit_queues.new(self._labkit_queues.index_of(device))

    @property
    def device(self) -> object:
        """The device the stream belongs to."""
        return self._labkit_queues.devices[self._labkit_queue.device]

    @property
    def device_index(self) -> int:
        """The number of that device."""
        return self._labkit_queue.device

    def wait_stream(self, stream: Stream) -> None:
        """What is queued here from now on comes after what is queued on `stream` by now."""
        self._labkit_queue.wait_for(stream._labkit_queue.before)
        self._labkit_queue.not_before(stream._labkit_queue.free_at)

    def wait_event(self, event: Event) -> None:
        """What is queued here from now on comes after `event`."""
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """An event that happens when what is queued here by now is done."""
        event = event or self._event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for this stream."""
        self._labkit_queue.finish()

    def query(self) -> bool:
        """Whether everything queued here is done: then the host may read what came from here."""
        done = self._labkit_queue.timeline.has_come(self._labkit_queue.free_at)
        if done:
            self._labkit_queue.arrive()
        return done

    def __enter__(self) -> Stream:
        self._labkit_before = self._labkit_queues.enter(self._labkit_queue)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._labkit_queues.leave(self._labkit_before)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other._labkit_queue is self._labkit_queue

    def __hash__(self) -> int:
        return id(self._labkit_queue)

    def __repr__(self) -> str:
        return f"<stand-in for torch.cuda.Stream {self._labkit_queue.number} of {self.device}>"


class Event:
    """Stands in for torch.cuda.Event."""

    _labkit_queues: ClassVar[Queues]

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self._timed = enable_timing
        self._labkit_moment = 0.0
        self._labkit_before = Before()

    def record(self, stream: Stream | None = None) -> None:
        """The event happens when what is queued on `stream` (the current one) by now is done."""
        queue = stream._labkit_queue if stream is not None else self._labkit_queues.current()
        self._labkit_moment = max(time.monotonic(), queue.free_at)
        self._labkit_before = queue.before

    def wait(self, stream: Stream | None = None) -> None:
        """`stream` (the current one) waits for the event."""
        queue = stream._labkit_queue if stream is not None else self._labkit_queues.current()
        queue.wait_for(self._labkit_before)
        queue.not_before(self._labkit_moment)

    def synchronize(self) -> None:
        """The host waits for the event."""
        self._labkit_queues.timeline.host_waits += 1
        time.sleep(max(0.0, self._labkit_moment - time.monotonic()))
        self._labkit_before.arrive()

    def query(self) -> bool:
        """Whether the event has happened: then the host may read what came before it."""
        happened = self._labkit_queues.timeline.has_come(self._labkit_moment)
        if happened:
            self._labkit_before.arrive()
        return happened

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        if not (self._timed and end._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        return (end._labkit_moment - self._labkit_moment) * 1000
