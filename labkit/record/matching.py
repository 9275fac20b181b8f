"""Which calls of several ranks belong together: a collective's on all its ranks, a send with its receive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

from labkit.record.events import Collective

POINT_TO_POINT = ("send", "recv")
_Numbered = dict[tuple[Hashable, int], list[Collective]]


def meetings(calls: Iterable[Collective]) -> list[tuple[Collective, ...]]:
    """The collectives that every member of their group took part in, each as its members' calls, by rank.

    A rank's k-th call of one operation on one group meets the k-th of the others. In order of the first to
    come.
    """
    numbered = _number((c for c in calls if c.op not in POINT_TO_POINT), lambda c: (c.op, c.group))
    met = [tuple(sorted(m, key=lambda c: c.rank)) for m in numbered.values() if len(m) == len(m[0].group)]
    return sorted(met, key=lambda members: min(c.start for c in members))


def messages(calls: Iterable[Collective]) -> list[tuple[Collective, Collective]]:
    """Each send with its receive: from one rank to another, messages of one tag arrive in order.

    Left out: receives from anybody, which do not say whose message they took, and what was sent to them.
    """
    known = [c for c in calls if c.op in POINT_TO_POINT and c.peer is not None]
    sent = _number((c for c in known if c.op == "send"), lambda c: (c.rank, c.peer, c.tag, c.group))
    received = _number((c for c in known if c.op == "recv"), lambda c: (c.peer, c.rank, c.tag, c.group))
    return [(sent[key][0], received[key][0]) for key in sent if key in received]


def everybody_came(calls: Iterable[Collective]) -> dict[Collective, float]:
    """For each call, when the last of those it waited for came: never after the call's own end.

    Whoever came after a call had ended was not waited for: a send that went into a buffer, for example.
    """
    known = list(calls)
    together = [*meetings(known), *messages(known)]
    came = {c: _last_before_end(c, members) for members in together for c in members if c.end is not None}
    return {c: came.get(c, c.start) for c in known}


def _last_before_end(call: Collective, members: Iterable[Collective]) -> float:
    assert call.end is not None
    return max(c.start for c in members if c.start <= call.end or c is call)


def _number(calls: Iterable[Collective], key: Callable[[Collective], Hashable]) -> _Numbered:
    """Calls by (key, number), where each rank counts its calls of a key in the order of calling."""
    numbered: _Numbered = defaultdict(list)
    counts: dict[tuple[int, Hashable], int] = defaultdict(int)
    for call in sorted(calls, key=lambda c: c.order):
        number = counts[call.rank, key(call)]
        counts[call.rank, key(call)] += 1
        numbered[key(call), number].append(call)
    return numbered
