"""Watches one rank: what it communicates, what it waits in, how long its named stretches take."""

from __future__ import annotations

import resource
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any

import torch
import torch.distributed as dist

from labkit.record.call_arguments import PEER, argument, exchanged, measure, member
from labkit.record.entry import Entry
from labkit.record.events import Collective, MemoryAt, MemoryUse, Span
from labkit.record.lines import LineFinder
from labkit.record.meter import MemoryMeter, restart_peak
from labkit.record.state import RUNNING, WAITING, StatePage, Wait, group_key, message_key, pack_wait
from labkit.torch_private_distributed import CALLS, Call, agreed_options, watch_new_groups

_NEW_GROUP = "new_group"
_MANY_KINDS = 1000
ASKED_AGAIN_AND_AGAIN = 20  # times that a handle was asked in vain before it said that its call is over
_MOST_ENTRIES = 200_000  # calls that are kept of one rank; a longer job keeps its first ones


class Recorder:
    """Records this rank's communication and spans, and keeps its state page true."""

    def __init__(self, rank: int, page: StatePage) -> None:
        self.rank = rank
        self.page = page
        self.entries: list[Entry] = []
        self.spans: list[tuple[str, str, float, float]] = []
        self.new_groups: list[Wait] = []
        self._find_line = LineFinder()
        # Both are weak: who forgets to keep a call's work, or a group, must meet what that does without a
        # recorder.
        self._groups: weakref.WeakKeyDictionary[Any, tuple[str, int, tuple[int, ...]]]
        self._groups = weakref.WeakKeyDictionary()
        self._pending: dict[weakref.ref[Any], Entry] = {}
        self._counts: dict[Any, int] = {}
        self._dtypes: dict[torch.dtype, str] = {}
        self.last: Entry | None = None  # the call that the state page shows
        self._packed: dict[tuple[Any, ...], bytes] = {}
        self.meter = MemoryMeter()

    def add_span(self, name: str, kind: str, start: float, end: float) -> None:
        """Record a stretch of work; times as `time.monotonic()` gives them."""
        self.spans.append((name, kind, start, end))

    def restart(self) -> None:
        """Forget what was recorded, and the peak of memory; what is still in flight is kept."""
        self.entries, self.spans, self.new_groups = [], [], []
        self.meter.restart()
        restart_peak()

    def enter(self, phase: int) -> None:
        """Tell the state page what the rank does now."""
        self.page.enter(phase)

    def _packed_once(self, entry: Entry) -> bytes:
        """The call as the state page holds it; packing is dear, and a loop makes the same calls again."""
        kind = entry.kind()
        packed = self._packed.get(kind)
        if packed is None:
            if len(self._packed) > _MANY_KINDS:
                self._packed.clear()
            packed = self._packed[kind] = entry.packed()
        return packed

    # -- called by the patched methods

    def begin(self, call: Call, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        """Note that a call starts, before torch sees it."""
        entry = Entry()
        name, key, members = self._group(group)
        entry.op, entry.group, entry.members = call.op, name, members
        measure(entry, argument(args, kwargs, call.input, call.name), self._dtypes)
        entry.sent, entry.received = (
            exchanged(args, kwargs, len(members)) if call.op == "all_to_all" else ((), ())
        )
        entry.peer, entry.tag = -1, 0
        if call.peer is not None:
            entry.peer = member(entry, argument(args, kwargs, call.peer, PEER[call.op]))
            entry.tag = index(argument(args, kwargs, 2, "tag") or 0)
        entry.detail = "" if entry.op in ("send", "recv") else agreed_options(args, kwargs, members)
        entry.file, entry.line, entry.function = self._find_line(2)
        packed = self._packed_once(entry)
        entry.number = self._count(entry, key)
        # said before torch sees the call: gloo ends the process at once when data of another size arrives
        self.page.add_call(packed, entry.number)
        self.last = entry
        entry.asked, entry.end, entry.start = 0, None, time.monotonic()
        if len(self.entries) < _MOST_ENTRIES:
            self.entries.append(entry)
        if call.blocks:
            self.page.enter(WAITING)
        return entry

    def refused(self, entry: Entry) -> None:
        """torch has not taken the call: it was never made. The page goes on saying what was tried."""
        if self.entries and self.entries[-1] is entry:
            self.entries.pop()
        self._count_again(entry, group_key(entry.group), -1)
        self.page.enter(RUNNING)

    def posted(self, call: Call, entry: Entry, work: Any) -> None:
        """torch has taken the call; `work` is what the rank may wait for."""
        entry.posted = time.monotonic()
        if call.blocks:
            entry.end = entry.posted
            self.page.enter(RUNNING)
        if work is not None:
            self._pending[weakref.ref(work, self._forgotten)] = entry

    def _forgotten(self, work: weakref.ref[Any]) -> None:
        """Nobody can wait for a call any more. gloo drops a message whose work nobody holds, so that a send
        is as if it had never been made, unless its receiver was waiting already.
        """
        entry = self._pending.pop(work, None)
        if entry is not None and entry.op == "send":
            self._count_again(entry, group_key(entry.group), -1)

    def wait(
        self, work: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Wait for `work` as torch does, with the state page saying so meanwhile."""
        entry = self._pending.get(weakref.ref(work))
        if entry is None:
            return original(work, *args, **kwargs)
        if entry is not self.last:
            self.page.set_call(self._packed_once(entry), entry.number)
            self.last = entry
        self.page.enter(WAITING)
        # A wait that fails stays on the page: it says what in. It may be waited for again.
        result = original(work, *args, **kwargs)
        self._pending.pop(weakref.ref(work), None)
        entry.end = time.monotonic()
        self.page.enter(RUNNING)
        return result

    def told(self, work: Any, over: bool) -> None:
        """What `is_completed` has said of `work`. Who asks again and again until its call is over waits for
        it; who asks now and then, with work between, does not.
        """
        entry = self._pending.get(weakref.ref(work))
        if entry is None:
            return
        if not over:
            entry.asked += 1
        elif entry.asked >= ASKED_AGAIN_AND_AGAIN:
            self._pending.pop(weakref.ref(work), None)
            entry.end = time.monotonic()

    @contextmanager
    def new_group(self, ranks: Sequence[int] | None, only_they: bool) -> Iterator[None]:
        """All ranks make a group together (only_they: its members alone): they wait for one another in it."""
        everybody = tuple(range(dist.get_world_size()))
        members = tuple(ranks) if only_they and ranks is not None else everybody
        name = _NEW_GROUP if members == everybody else f"{_NEW_GROUP} {members}"[:60]
        key = group_key(name)
        number = self._counts[key] = self._counts.get(key, 0) + 1
        self.page.count_call(key, number)
        detail = f"of ranks {', '.join(map(str, everybody if ranks is None else ranks))}"
        wait = Wait(_NEW_GROUP, name, 0, -1, 0, 0, (), "", members, *self._find_line(3), detail)
        self.new_groups.append(wait)
        self.page.add_call(pack_wait(wait), number)
        self.last = None
        self.page.enter(WAITING)
        try:
            yield
        except (TypeError, ValueError):  # torch's words for ranks of which no group can be made
            self.new_groups.pop()
            self._counts[key] -= 1
            self.page.count_call(key, number - 1)
            self.page.enter(RUNNING)
            raise
        self.page.enter(RUNNING)

    # -- results

    def memory(self) -> MemoryUse:
        """The peak so far."""
        device = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return MemoryUse(self.rank, host, device)

    def collectives(self, zero: float) -> list[Collective]:
        """The calls that came through Python, with times relative to `zero` (monotonic seconds)."""
        return [self._collective(order, entry, zero) for order, entry in enumerate(self.entries)]

    def timeline(self, zero: float) -> list[Span]:
        """The spans, with times relative to `zero` (monotonic seconds)."""
        return [
            Span(self.rank, name, kind, start - zero, end - zero) for name, kind, start, end in self.spans
        ]

    def memory_over_time(self, zero: float) -> list[MemoryAt]:
        """What was held whenever a span began or ended, with times relative to `zero` (monotonic seconds)."""
        return [MemoryAt(self.rank, at - zero, num_bytes) for at, num_bytes in self.meter.readings]

    def _collective(self, order: int, entry: Entry, zero: float) -> Collective:
        return Collective(
            rank=self.rank,
            op=entry.op,
            num_bytes=entry.num_bytes,
            shape=entry.shape,
            dtype=entry.dtype,
            group=entry.members,
            peer=None if entry.peer < 0 else entry.peer,
            order=order,
            start=entry.start - zero,
            end=None if entry.end is None else entry.end - zero,
            source="python",
            line=f"{entry.file}:{entry.line}" if entry.file else "",
            tag=entry.tag,
            sent=entry.sent,
            received=entry.received,
        )

    # -- details

    def _group(self, group: Any) -> tuple[str, int, tuple[int, ...]]:
        known = self._groups.get(group)
        if known is None:
            name, members = group.group_name, tuple(map(int, dist.get_process_group_ranks(group)))
            known = self._groups[group] = (name, group_key(name), members)
        return known

    def _count(self, entry: Entry, key: int) -> int:
        """How many such calls this one makes: on the group with this key, of messages with its peer there."""
        return self._count_again(entry, key, 1)

    def _count_again(self, entry: Entry, key: int, by: int) -> int:
        """By -1: a call is taken back."""
        if entry.op not in ("send", "recv"):
            number = self._counts[key] = self._counts.get(key, 0) + by
            self.page.count_call(key, number)
            return number
        message = message_key(key, entry.peer) if entry.peer >= 0 else entry.peer
        number = self._counts[entry.op, message] = self._counts.get((entry.op, message), 0) + by
        if entry.op == "send":
            self.page.count_send(message, number)
        elif entry.peer >= 0:
            self.page.count_receive(message, number)
        return number


def install(recorder: Recorder) -> None:
    """Make every communication call of this process pass through `recorder`.

    The methods of torch's ProcessGroup class are replaced, so a call is seen however its function was
    imported. Meant for a rank's process, which ends with its job: nothing is put back.
    """
    for name, call in CALLS.items():
        original = getattr(dist.ProcessGroup, name, None)
        if original is not None:
            setattr(dist.ProcessGroup, name, _recorded(recorder, original, call))
    watch_new_groups(recorder.new_group)
    original_wait = dist.Work.wait

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        return recorder.wait(work, original_wait, args, kwargs)

    dist.Work.wait = wait  # type: ignore[assignment, method-assign]
    original_asking = dist.Work.is_completed

    def is_completed(work: Any) -> bool:
        over = original_asking(work)
        recorder.told(work, over)
        return over

    dist.Work.is_completed = is_completed  # type: ignore[assignment, method-assign]


def _recorded(recorder: Recorder, original: Callable[..., Any], call: Call) -> Callable[..., Any]:
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        entry = recorder.begin(call, group, args, kwargs)
        try:
            work = original(group, *args, **kwargs)
        except (TypeError, ValueError, RuntimeError):
            recorder.refused(entry)
            raise
        recorder.posted(call, entry, work)
        return work

    return method
