"""Stand-in devices as a program opens and closes them, and what it can ask of them."""

from __future__ import annotations

import contextlib
import time
from functools import partial

from labkit.devices.cuda_surface import replace_cuda
from labkit.devices.ledger import readable
from labkit.devices.machine import Machine
from labkit.devices.queues import Busy
from labkit.devices.surface import replace_torch
from labkit.devices.watched import Watched, counted

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
        if host_link is not None and not host_link > 0:
            raise ValueError(f"expected host_link in bytes a second, more than 0, or None; found {host_link}")
        super().__init__(count)
        self._make = partial(Machine, self.devices, bytes_each, late_copies, host_link, self.transfers)
        self.machine = self._make()
        self._was_open = False
        self._stack = contextlib.ExitStack()

    # ---- opening and closing

    def open(self) -> StandIns:
        """From now on torch has these devices, in every cell, until `close`. They begin empty and idle, the
        second time too.
        """
        if _open_sessions:
            raise RuntimeError("stand-in devices are open already: close them first (gpus.close())")
        if self._was_open:
            self.machine = self._make()
        self._was_open = True
        self.machine.queues.timeline.opened_at = time.monotonic()
        with contextlib.ExitStack() as stack:
            replace_torch(self.machine, stack)
            replace_cuda(self.machine, stack)
            stack.enter_context(self.machine.watcher)
            _open_sessions.append(self)
            stack.callback(_open_sessions.remove, self)
            self._stack = stack.pop_all()
        return self

    def close(self) -> None:
        """torch is as it was; tensors that were on a device are plain CPU tensors now."""
        self._stack.close()
        self.machine.placement.forget_all()

    # ---- what happened

    @property
    def timeline(self) -> list[Busy]:
        """When each device's streams were at work."""
        return self.machine.queues.timeline.busy

    @property
    def host_waits(self) -> int:
        """How often the host has waited for a device: for a value, a copy, an event, or everything; to ask
        again and again whether an event has happened is to wait for it.
        """
        return self.machine.queues.timeline.host_waits

    def allocated(self, index: int) -> int:
        """Bytes device `index` holds now."""
        return self.machine.ledgers[index].allocated

    def peak(self, index: int) -> int:
        """The most bytes device `index` has held since the last `reset_peaks`, also where torch's own peak
        was reset since.
        """
        return self.machine.ledgers[index].most

    def reset_peaks(self) -> None:
        """Measure peaks from now on."""
        for ledger in self.machine.ledgers:
            ledger.restart()

    def synchronize(self) -> None:
        """Wait until everything queued on every device is done."""
        for index in range(len(self.devices)):
            self.machine.queues.finish(index)

    # ---- how it is shown

    def title(self) -> str:
        """What a figure of these devices says they are."""
        each = readable(self.machine.ledgers[0].capacity)
        return f"{counted(len(self.devices), 'stand-in device')} of {each}"


def open_session() -> StandIns | None:
    """The stand-in devices that are open now, if any are."""
    return _open_sessions[-1] if _open_sessions else None
