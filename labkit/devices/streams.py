"""What stands in for torch.cuda.Stream and torch.cuda.Event."""

from __future__ import annotations

import time
from types import TracebackType
from typing import ClassVar

from labkit.devices.queues import Before, Queue, Queues


def kinds_of(queues: Queues) -> tuple[type[Stream], type[Event]]:
    """What stands in for torch.cuda.Stream and torch.cuda.Event on these queues: classes, as programs write
    `torch.cuda.Stream | None` and ask isinstance.
    """
    event = type("Event", (Event,), {"_queues": queues})
    return type("Stream", (Stream,), {"_queues": queues, "_event": event}), event


class Stream:
    """Stands in for torch.cuda.Stream. queue: what it is a name for; a new one where none is given."""

    _queues: ClassVar[Queues]
    _event: ClassVar[type[Event]]

    def __init__(self, device: object = None, priority: int = 0, *, queue: Queue | None = None) -> None:
        self.queue = queue or self._queues.new(self._queues.index_of(device))

    @property
    def device(self) -> object:
        """The device the stream belongs to."""
        return self._queues.devices[self.queue.device]

    @property
    def device_index(self) -> int:
        """The number of that device."""
        return self.queue.device

    def wait_stream(self, stream: Stream) -> None:
        """What is queued here from now on comes after what is queued on `stream` by now."""
        self.queue.wait_for(stream.queue.before)
        self.queue.not_before(stream.queue.free_at)

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
        self.queue.finish()

    def query(self) -> bool:
        """Whether everything queued here is done: then the host may read what came from here."""
        done = self.queue.timeline.has_come(self.queue.free_at)
        if done:
            self.queue.arrive()
        return done

    def __enter__(self) -> Stream:
        self._before = self._queues.enter(self.queue)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._queues.leave(self._before)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.queue is self.queue

    def __hash__(self) -> int:
        return id(self.queue)

    def __repr__(self) -> str:
        return f"<stand-in for torch.cuda.Stream {self.queue.number} of {self.device}>"


class Event:
    """Stands in for torch.cuda.Event."""

    _queues: ClassVar[Queues]

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self._timed = enable_timing
        self.moment = 0.0
        self._before = Before()

    def record(self, stream: Stream | None = None) -> None:
        """The event happens when what is queued on `stream` (the current one) by now is done."""
        queue = stream.queue if stream is not None else self._queues.current()
        self.moment = max(time.monotonic(), queue.free_at)
        self._before = queue.before

    def wait(self, stream: Stream | None = None) -> None:
        """`stream` (the current one) waits for the event."""
        queue = stream.queue if stream is not None else self._queues.current()
        queue.wait_for(self._before)
        queue.not_before(self.moment)

    def synchronize(self) -> None:
        """The host waits for the event."""
        self._queues.timeline.host_waits += 1
        time.sleep(max(0.0, self.moment - time.monotonic()))
        self._before.arrive()

    def query(self) -> bool:
        """Whether the event has happened: then the host may read what came before it."""
        happened = self._queues.timeline.has_come(self.moment)
        if happened:
            self._before.arrive()
        return happened

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        if not (self._timed and end._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        return (end.moment - self.moment) * 1000
