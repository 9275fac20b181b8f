"""A page of memory that each rank keeps about itself, readable while it runs and after it died.

The rank writes, the watchdog and the notebook read. Writes are a few microseconds and need no lock: a reader
that catches a half-written page sees an odd `writes` counter and reads again.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

MAX_RANKS = 512
MAX_GROUPS = 256  # with collectives on them
MAX_PARTNERS = 1024  # a group and a rank of it that messages go to, or come from
STARTING, RUNNING, WAITING, FINISHED, FAILED, IDLE = range(6)
PHASES = ("starting", "running", "waiting", "finished", "failed", "idle")

HOLD = "hold"  # for `ControlPage.stop`: say why the job failed, and leave its ranks as they are

_HEAD = struct.Struct("<QQId")  # writes, events, phase, since
_WRITES = struct.Struct("<Q")
_WAIT = struct.Struct("<32s64sIiiQ64s24s512s256sI64s32s512s512s")
_PROGRESS = struct.Struct("<dd80s")
_COUNT = struct.Struct("<I")
_COUNTED = struct.Struct("<QI")  # what, how often
_WAIT_AT = 64
_NUMBER_IN_WAIT = 96  # after op and group
_NUMBER_AT = _WAIT_AT + _NUMBER_IN_WAIT
_PROGRESS_AT = _WAIT_AT + _WAIT.size
_SENDS_AT = 4096
_RECEIVES_AT = _SENDS_AT + MAX_PARTNERS * _COUNTED.size
_GROUPS_AT = _RECEIVES_AT + MAX_PARTNERS * _COUNTED.size
_MADE_AT = _GROUPS_AT + MAX_GROUPS * _COUNTED.size
_UNCOUNTED_AT = _MADE_AT + _COUNT.size
_RECENT_AT = _MADE_AT + 64
RECENT = 16  # calls that are remembered
MOST_TEXT = 512  # bytes of a list of numbers
SHAPE_TEXT = 64  # and of a shape
_RUN = re.compile(r"(-?\d+)(?:\+(-?\d+)x(\d+))?")
PAGE_BYTES = _RECENT_AT + RECENT * _WAIT.size


@dataclass(frozen=True)
class Wait:
    """One communication call that a rank waits in.

    number: counts this rank's calls on the group (collectives) or with the peer on it in this direction
    (send, recv), from 1. group is the group's name in torch, members its global ranks; peer a global rank,
    -1 for none or any. detail: what else all ranks must agree in, such as "max" or "from rank 1". sent,
    received: of an all_to_all, bytes for and from each of `members`, in their order. Each of these is ()
    where the page has no room.
    """

    op: str
    group: str
    number: int
    peer: int
    tag: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    members: tuple[int, ...]
    file: str
    line: int
    function: str
    detail: str = ""
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()

    @property
    def point_to_point(self) -> bool:
        """Whether it is a send or a receive."""
        return self.op in ("send", "recv")


@dataclass(frozen=True)
class State:
    """What a rank's page said. `since` is in seconds of the machine's monotonic clock.

    wait: the call it waits in, while `phase` is "waiting"; otherwise the last call it made. recent: its last
    calls, oldest first. sends, receives: how many, by `message_key`; calls: collectives, by `group_key`.
    complete: whether these counts are all there are; a page has room for many, and not for all.
    """

    phase: str
    since: float = 0.0
    events: int = 0
    wait: Wait | None = None
    sends: dict[int, int] = field(default_factory=dict)
    receives: dict[int, int] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    recent: tuple[Wait, ...] = ()
    complete: bool = True


def group_key(name: str) -> int:
    """A number for a group's name, the same on every rank."""
    return zlib.crc32(name.encode()) or 1


def message_key(group: int, peer: int) -> int:
    """A number for messages to or from a global rank on the group with this key."""
    return group << 16 | peer


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


@lru_cache(1024)  # of the same groups and sizes, call after call
def _whole(numbers: tuple[int, ...], room: int = MOST_TEXT) -> bytes:
    """Numbers as text, in runs of equal steps ("0+8x64": 64 of them, from 0, each 8 more), or nothing at all
    where they do not fit: a part of them would be other numbers.
    """
    text = ",".join(
        str(first) if count == 1 else f"{first}+{step}x{count}" for first, step, count in _runs(numbers)
    ).encode()
    return text if len(text) <= room else b""


def _runs(numbers: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """First number, step and length of each run; two numbers alone are no run."""
    at = 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 0
        end = at + 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        count = end - at if end - at > 2 else 1
        yield numbers[at], step, count
        at += count


def _numbers(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, step, count = _RUN.fullmatch(part).groups("")  # type: ignore[union-attr]  # `_whole` wrote it
        found += (int(first) + place * int(step or 0) for place in range(int(count or 1)))
    return tuple(found)


class StatePage:
    """The page of one rank, in a file. The rank creates it; anyone with the directory can read it."""

    def __init__(self, path: Path, create: bool = False) -> None:
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            if create:
                os.posix_fallocate(descriptor, 0, PAGE_BYTES)
            self._memory = mmap.mmap(descriptor, PAGE_BYTES)
        finally:
            os.close(descriptor)
        self._writes = 0
        self._events = 0
        self._slots: dict[tuple[int, int], int] = {}  # by table and key
        self._used: dict[int, int] = {}  # slots of each table
        self._call = b""
        self._made = 0
        self._recent = [b""] * RECENT

    # -- written by the rank

    def enter(self, phase: int) -> None:
        """The rank is now in `phase` (one of the constants above), whatever it was waiting for is over."""
        self._writes += 2
        self._events += 1
        _HEAD.pack_into(self._memory, 0, self._writes, self._events, phase, time.monotonic())

    def set_call(self, packed: bytes, number: int) -> None:
        """The rank makes, or now waits in, the call described by `pack_wait`, which has this number."""
        memory = self._memory
        self._writes += 2
        _WRITES.pack_into(memory, 0, self._writes - 1)
        if packed is not self._call:
            memory[_WAIT_AT : _WAIT_AT + _WAIT.size] = packed
            self._call = packed
        _COUNT.pack_into(memory, _NUMBER_AT, number)
        _WRITES.pack_into(memory, 0, self._writes)

    def add_call(self, packed: bytes, number: int) -> None:
        """The rank makes a new call: as `set_call`, and it is remembered among the recent ones."""
        slot = self._made % RECENT
        at = _RECENT_AT + slot * _WAIT.size
        if packed is not self._recent[slot]:
            self._memory[at : at + _WAIT.size] = packed
            self._recent[slot] = packed
        _COUNT.pack_into(self._memory, at + _NUMBER_IN_WAIT, number)
        self._made += 1
        _COUNT.pack_into(self._memory, _MADE_AT, self._made)
        self.set_call(packed, number)

    def count_send(self, message: int, number: int) -> None:
        """This rank has started `number` sends with this `message_key` so far."""
        self._count(_SENDS_AT, MAX_PARTNERS, message, number)

    def count_receive(self, message: int, number: int) -> None:
        """This rank has started `number` receives with this `message_key` so far."""
        self._count(_RECEIVES_AT, MAX_PARTNERS, message, number)

    def count_call(self, group: int, number: int) -> None:
        """This rank has started `number` collectives on the group with this key so far."""
        self._count(_GROUPS_AT, MAX_GROUPS, group, number)

    def _count(self, table: int, size: int, key: int, number: int) -> None:
        slot = self._slots.get((table, key))
        if slot is None:
            slot = self._used.get(table, 0)
            if slot == size:
                _COUNT.pack_into(self._memory, _UNCOUNTED_AT, 1)
                return
            self._used[table] = slot + 1
            self._slots[table, key] = slot
        _COUNTED.pack_into(self._memory, table + slot * _COUNTED.size, key, number)

    def set_progress(self, done: float, total: float, label: str) -> None:
        """How far this rank is; total 0 when not known."""
        cut = label.encode(errors="replace")[:79].decode(errors="ignore")  # between two characters
        _PROGRESS.pack_into(self._memory, _PROGRESS_AT, done, total, cut.encode())

    # -- read by others

    def events(self) -> int:
        """Grows whenever the rank enters or leaves a phase: unchanged means nothing has happened."""
        return int(_HEAD.unpack_from(self._memory, 0)[1])

    def phase(self) -> int:
        """What the rank does now, as a number of `PHASES`."""
        return int(_HEAD.unpack_from(self._memory, 0)[2])

    def progress(self) -> tuple[float, float, str]:
        """done, total, label as last set; (0, 0, "") when never set."""
        done, total, label = _PROGRESS.unpack_from(self._memory, _PROGRESS_AT)
        return done, total, _text(label)

    def read(self) -> State:
        """Everything the page says now."""
        for _ in range(100):
            before = _HEAD.unpack_from(self._memory, 0)
            raw = self._memory[:PAGE_BYTES]
            if before[0] % 2 == 0 and _HEAD.unpack_from(self._memory, 0)[0] == before[0]:
                break
        return _parse(raw)

    def close(self) -> None:
        """Let go of the file."""
        self._memory.close()


def pack_wait(wait: Wait) -> bytes:
    """The bytes of a wait as the page holds them; long texts are cut, numbers that do not fit left out."""
    return _WAIT.pack(
        wait.op.encode(),
        wait.group.encode(),
        wait.number,
        wait.peer,
        wait.tag,
        wait.num_bytes,
        _whole(wait.shape, SHAPE_TEXT),
        wait.dtype.encode(),
        _whole(wait.members),
        wait.file.encode(errors="replace")[-255:],
        wait.line,
        wait.function.encode()[:63],
        wait.detail.encode()[:31],
        _whole(wait.sent),
        _whole(wait.received),
    )


def _parse(raw: bytes) -> State:
    _, events, phase, since = _HEAD.unpack_from(raw, 0)
    sends = _counts(raw[_SENDS_AT:_RECEIVES_AT])
    receives = _counts(raw[_RECEIVES_AT:_GROUPS_AT])
    calls = _counts(raw[_GROUPS_AT:_MADE_AT])
    (uncounted,) = _COUNT.unpack_from(raw, _UNCOUNTED_AT)
    wait = _parse_wait(raw, _WAIT_AT) if raw[_WAIT_AT] else None
    (made,) = _COUNT.unpack_from(raw, _MADE_AT)
    slots = (number % RECENT for number in range(max(0, made - RECENT), made))
    recent = tuple(_parse_wait(raw, _RECENT_AT + slot * _WAIT.size) for slot in slots)
    return State(PHASES[phase], since, events, wait, sends, receives, calls, recent, not uncounted)


def _counts(raw: bytes) -> dict[int, int]:
    return {key: number for key, number in _COUNTED.iter_unpack(raw) if key}


def _parse_wait(raw: bytes, at: int) -> Wait:
    (
        op,
        group,
        number,
        peer,
        tag,
        size,
        shape,
        dtype,
        members,
        file,
        line,
        function,
        detail,
        sent,
        received,
    ) = _WAIT.unpack_from(raw, at)
    return Wait(
        _text(op),
        _text(group),
        number,
        peer,
        tag,
        size,
        _numbers(_text(shape)),
        _text(dtype),
        _numbers(_text(members)),
        _text(file),
        line,
        _text(function),
        _text(detail),
        _numbers(_text(sent)),
        _numbers(_text(received)),
    )


class ControlPage:
    """What the notebook tells a running job: when its time is up, and whether to stop. A file of 64 bytes."""

    _LAYOUT = struct.Struct("<dd32s")

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, 64)
            self._memory = mmap.mmap(descriptor, 64)
        finally:
            os.close(descriptor)

    def set_deadline(self, monotonic: float, timeout: float) -> None:
        """End the job at this time of the machine's monotonic clock, which is `timeout` seconds from its
        start.

        0 and 0 for never.
        """
        struct.pack_into("<dd", self._memory, 0, monotonic, timeout)

    def stop(self, reason: str) -> None:
        """End the job as soon as possible, with this verdict ("interrupted", "cancelled")."""
        struct.pack_into("<32s", self._memory, 16, reason.encode())

    def read(self) -> tuple[float, float, str]:
        """Deadline and timeout (0: none), and the reason to stop ("": go on)."""
        deadline, timeout, reason = self._LAYOUT.unpack_from(self._memory, 0)
        return deadline, timeout, _text(reason)

    def close(self) -> None:
        """Let go of the file."""
        self._memory.close()
