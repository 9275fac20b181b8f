"""A call as the recorder keeps it while it happens, and until its job ends."""

from __future__ import annotations

from typing import Any

from labkit.record.state import Wait, pack_wait


class Entry:
    """One call, while and after it happens. Times are of the machine's monotonic clock."""

    __slots__ = (
        "asked",
        "detail",
        "dtype",
        "end",
        "file",
        "function",
        "group",
        "line",
        "members",
        "num_bytes",
        "number",
        "op",
        "peer",
        "posted",
        "received",
        "sent",
        "shape",
        "start",
        "tag",
    )

    op: str
    group: str
    members: tuple[int, ...]
    number: int
    peer: int
    tag: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    detail: str
    file: str
    line: int
    function: str
    sent: tuple[int, ...]
    received: tuple[int, ...]
    start: float
    posted: float
    end: float | None
    asked: int  # times that its handle said that it is not over

    def kind(self) -> tuple[Any, ...]:
        """What calls of a loop have in common: everything but their number and their time."""
        return (
            self.op,
            self.group,
            self.peer,
            self.tag,
            self.num_bytes,
            self.shape,
            self.dtype,
            self.detail,
            self.file,
            self.line,
            self.function,
            self.sent,
            self.received,
        )

    def packed(self) -> bytes:
        """As the state page holds it, with number 0."""
        return pack_wait(
            Wait(
                self.op,
                self.group,
                0,
                self.peer,
                self.tag,
                self.num_bytes,
                self.shape,
                self.dtype,
                self.members,
                self.file,
                self.line,
                self.function,
                self.detail,
                self.sent,
                self.received,
            )
        )
