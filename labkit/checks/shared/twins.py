"""Which calls that C++ noted are calls from Python that a recording has already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

CLOCK_SLACK = 1e-3  # seconds between the clocks of two recorders
Recorded = Mapping[str, Any]  # a call, as `RankAnswer.collectives` has it
_start = itemgetter("start")


def each_once(found: Iterable[Recorded]) -> list[Recorded]:
    """The calls of a recording, each once: those from Python, then those that C++ made besides.

    Between two clocks a call that torch's flight recorder noted may seem to be one of C++'s beside the Python
    call that it was, or the all_reduce that gloo made of a reduce_scatter: a twin, noted while that lasted.
    """
    calls, besides = list[Recorded](), list[Recorded]()
    for call in found:
        (calls if call["source"] == "python" else besides).append(call)
    twins = _twins(calls, besides)
    return [*calls, *(native for number, native in enumerate(besides) if number not in twins)]


def _twins(calls: Sequence[Recorded], besides: Sequence[Recorded]) -> set[int]:
    """Which of those `besides` are one of the calls. In the order in which they begin, each is the one that
    ends first of those under way: so as many as can be have their own, and thousands take no time.
    """
    under_way = _UnderWay(calls)
    in_order = sorted(range(len(besides)), key=lambda number: besides[number]["start"])
    return {number for number in in_order if under_way.takes(besides[number])}


class _UnderWay:
    """Calls by operation, bytes and group: those that have not begun, and those that have not ended."""

    def __init__(self, calls: Sequence[Recorded]) -> None:
        self._to_come: dict[tuple[Any, ...], list[Recorded]] = {}
        self._begun: dict[tuple[Any, ...], list[tuple[float, int]]] = {}
        for call in sorted(calls, key=_start, reverse=True):
            self._to_come.setdefault(_kind(call, call["op"]), []).append(call)

    def takes(self, native: Recorded) -> bool:
        """Whether one that lasts while `native` begins, which is not before any asked about earlier, is left:
        it is taken.
        """
        ops = ("all_reduce", "reduce_scatter") if native["op"] == "all_reduce" else (native["op"],)
        begun = [self._now(_kind(native, op), native["start"]) for op in ops]
        if not any(begun):
            return False
        heappop(min(filter(None, begun), key=lambda ends: ends[0]))
        return True

    def _now(self, kind: tuple[Any, ...], moment: float) -> list[tuple[float, int]]:
        """The ends of the calls of a kind that last at this moment, as a heap."""
        to_come, ends = self._to_come.get(kind, []), self._begun.setdefault(kind, [])
        while to_come and to_come[-1]["start"] - CLOCK_SLACK <= moment:
            call = to_come.pop()
            heappush(ends, (call["start"] if call["end"] is None else call["end"], len(to_come)))
        while ends and ends[0][0] + CLOCK_SLACK < moment:
            heappop(ends)
        return ends


def _kind(call: Recorded, op: str) -> tuple[Any, ...]:
    return op, call["num_bytes"], str(call["group"])
