"""Stand-in devices while they are open: their ledgers, streams, transfers, and what of torch they replace."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from torch import Tensor

from labkit.devices.ledger import Ledger, readable
from labkit.devices.messages import no_such_device
from labkit.devices.placement import HOST, Home, Placement
from labkit.devices.streams import Busy, LateCopy, Queue
from labkit.devices.watched import Transfer, Watched, counted
from labkit.devices.watcher import Watcher

_open_sessions: list[StandIns] = []  # at most one: torch itself is what a session changes


class StandIns(Watched):
    """`count` devices, `cuda:0` to `cuda:{count-1}`, of `bytes_each` bytes. For `with`, or open and close.

    late_copies: copies from pinned memory with `non_blocking=True`, and to the host, hold NaN until somebody
        waited for them.
    host_link: bytes a second between the host and a device; None: copies take no time.
    """

    stand_in = True

    def __init__(
        self, count: int, bytes_each: int, late_copies: bool = True, host_link: float | None = None
    ) -> None:
        if count < 1 or bytes_each < 1:
            raise ValueError(
                f"expected at least one device of at least one byte, found {count} of {bytes_each}"
            )
        super().__init__(count)
        self.ledgers = [Ledger(index, bytes_each) for index in range(count)]
        self.placement = Placement(self.ledgers)
        self.watcher = Watcher(self)
        self.timeline: list[Busy] = []
        self.late_copies, self.host_link = late_copies, host_link
        self.opened_at = 0.0
        self.current_device = 0
        self._queues = [Queue(self, index, 0) for index in range(count)]
        self._current = list(self._queues)
        self._streams_made = 0
        self._stack = contextlib.ExitStack()

    # ---- opening and closing

    def open(self) -> StandIns:
        """From now on torch has these devices, in every cell, until `close`."""
        from labkit.devices.surface import replace_torch

        if _open_sessions:
            raise RuntimeError("stand-in devices are open already: close them first (gpus.close())")
        self.opened_at = time.monotonic()
        with contextlib.ExitStack() as stack:
            replace_torch(self, stack)
            stack.enter_context(self.watcher)
            _open_sessions.append(self)
            stack.callback(_open_sessions.remove, self)
            self._stack = stack.pop_all()
        return self

    def close(self) -> None:
        """torch is as it was; tensors that were on a device are plain CPU tensors now."""
        self._stack.close()
        self.placement.forget_all()

    # ---- what happened

    def allocated(self, index: int) -> int:
        """Bytes device `index` holds now."""
        return self.ledgers[index].allocated

    def peak(self, index: int) -> int:
        """The most bytes device `index` has held since the last `reset_peaks`."""
        return self.ledgers[index].peak

    def reset_peaks(self) -> None:
        """Measure peaks from now on."""
        for ledger in self.ledgers:
            ledger.reset_peak()

    def synchronize(self) -> None:
        """Wait until everything queued on every device is done."""
        for index in range(len(self.devices)):
            self.finish(index)

    # ---- devices and streams

    def index_of(self, device: Any = None) -> int:
        """The index of a device given in any form torch takes; of the current one for None."""
        if device is None:
            return self.current_device
        named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        index = self.current_device if named.index is None else named.index
        if index >= len(self.devices):
            raise no_such_device(index, len(self.devices))
        return index

    def home_of(self, device: Any) -> Home:
        """The index of a stand-in device; HOST for any other device."""
        if isinstance(device, int):
            return self.index_of(device)
        return self.index_of(device) if torch.device(device).type == "cuda" else HOST

    def new_queue(self, index: int) -> Queue:
        """Another stream of a device."""
        self._streams_made += 1
        queue = Queue(self, index, self._streams_made)
        self._queues.append(queue)
        return queue

    def queue(self, index: int | None = None) -> Queue:
        """The current stream of a device."""
        return self._current[self.current_device if index is None else index]

    def default_queue(self, index: int) -> Queue:
        """The stream a device works on when no other is chosen."""
        return self._queues[index]

    def enter_queue(self, queue: Queue) -> tuple[int, Queue]:
        """Make a stream, and its device, the current one; what to give `leave_queue` afterwards."""
        before = (self.current_device, self._current[queue.device])
        self.current_device, self._current[queue.device] = queue.device, queue
        return before

    def leave_queue(self, before: tuple[int, Queue]) -> None:
        """Undo `enter_queue`."""
        self.current_device, queue = before
        self._current[queue.device] = queue

    def finish(self, index: int) -> None:
        """The host waits for every stream of a device."""
        for queue in self._queues:
            if queue.device == index:
                queue.finish()

    # ---- copies

    def move(self, x: Tensor, home: Home, non_blocking: bool = False, **how: Any) -> Tensor:
        """A copy of `x` on another device, without a gradient of its own."""
        if home is not HOST:
            self.ledgers[home].require(x.numel() * x.element_size())
        with self.watcher.pause():
            made = torch.empty_like(x.detach(), **how)
        if home is HOST and non_blocking:
            self.placement.pin(made)
        return self.copy_into(self.placement.put(made, home), x, non_blocking)

    def copy_into(self, destination: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """Copy values across devices, in the order of the streams, and write the transfer down."""
        to, come_from = self.placement.home(destination), self.placement.home(source)
        queue = self.queue(come_from if to is HOST else to)
        self._note(queue, destination, source, non_blocking)
        if to is not HOST and come_from is not HOST:
            self._between_devices(self.queue(come_from), self.queue(to))
            self._copy(destination, source)
            return destination
        if self.host_link is not None:
            seconds = source.numel() * source.element_size() / self.host_link
            queue.add(seconds, "to host" if to is HOST else "to device", "communication")
        pinned = self.placement.is_pinned(destination if to is HOST else source)
        if non_blocking and pinned and self.late_copies:
            self._copy_late(queue, destination, source, to)
        else:
            queue.reach()
            self._copy(destination, source)
            if not non_blocking:
                queue.finish()
        return destination

    def _copy(self, destination: Tensor, source: Tensor) -> None:
        with self.watcher.pause(), torch.no_grad():
            destination.data.copy_(source.detach())

    def _copy_late(self, queue: Queue, destination: Tensor, source: Tensor, to: Home) -> None:
        queue.reach()
        with self.watcher.pause(), torch.no_grad():
            kept = source.detach().clone() if to is HOST else source.detach()
            destination.data.fill_(float("nan") if destination.dtype.is_floating_point else 0)
        copy = LateCopy(lambda: self._copy(destination, kept))
        (queue.to_host if to is HOST else queue.to_device).append(copy)

    def _between_devices(self, one: Queue, other: Queue) -> None:
        for queue in (one, other):
            queue.reach()
        moment = max(one.free_at, other.free_at)
        one.not_before(moment)
        other.not_before(moment)

    def _note(self, queue: Queue, destination: Tensor, source: Tensor, non_blocking: bool) -> None:
        num_bytes = source.numel() * source.element_size()
        ends = str(source.device), str(destination.device)
        self.transfers.append(
            Transfer(*ends, num_bytes, tuple(source.shape), queue.number, bool(non_blocking))
        )

    # ---- how it is shown

    def title(self) -> str:
        return f"{counted(len(self.devices), 'stand-in device')} of {readable(self.ledgers[0].capacity)}"


def open_session() -> StandIns | None:
    """The stand-in devices that are open now, if any are."""
    return _open_sessions[-1] if _open_sessions else None
