"""Waits of a host that asks a device again and again, and queues something small in between."""

from __future__ import annotations

from labkit.devices.queues import Queue, Timeline

TIMES_IN_VAIN = 2  # that somebody may ask before one and the same step's work, and not wait


class PatientTimeline(Timeline):
    """Counts as a wait, besides, what was asked about in vain and is found over later on, when nothing of a
    step was queued in between: no copy to a device, and no kernel that takes time.

    Who asks once a step, to use memory again or to read what has come, does not wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self._in_vain: dict[float, int] = {}  # moment -> times since the last work of a step
        self._waits_then = 0

    def note(self, queue: Queue, name: str, kind: str, start: float, end: float) -> None:
        """As ever; what comes back to the host is no work of a step."""
        if name != "to host":
            self._in_vain.clear()
        super().note(queue, name, kind, start, end)

    def has_come(self, moment: float) -> bool:
        """Whether it is `moment` by now. Who has waited since for everything does not wait once more."""
        if self.host_waits != self._waits_then:
            self._in_vain.clear()
        before = self.host_waits
        come = super().has_come(moment)
        if not come:
            self._in_vain[moment] = self._in_vain.get(moment, 0) + 1
        elif self._in_vain.pop(moment, 0) >= TIMES_IN_VAIN and self.host_waits == before:
            self.host_waits += 1
        self._waits_then = self.host_waits
        return come
