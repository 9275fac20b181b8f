"""Where the time of a step goes on each rank: arithmetic of stretches of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

Stretch = tuple[float, float]  # begin, end
Call = tuple[float, float, float]  # begin, end, and when the last rank that is waited for came


def union(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The same time as stretches that neither overlap nor touch, in order; empty ones are left out."""
    joined: list[Stretch] = []
    for begin, end in sorted(s for s in stretches if s[1] > s[0]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def length(stretches: Iterable[Stretch]) -> float:
    """How long they are together, what overlaps counted once."""
    return sum(end - begin for begin, end in union(stretches))


def exposed(hiding: Iterable[Stretch], seen: Iterable[Stretch]) -> float:
    """How much of `seen` has nothing of `hiding` at the same time."""
    hiding = list(hiding)
    return length([*hiding, *seen]) - length(hiding)


def clip(stretches: Iterable[Stretch], begin: float, end: float) -> list[Stretch]:
    """What of them is between two moments."""
    return [(max(b, begin), min(e, end)) for b, e in stretches if b < end and e > begin]


@dataclass(frozen=True)
class StepShare:
    """Seconds of one rank's step. Together they are the step.

    compute: something was computed. exposed: nothing was, and bytes were on their way. waiting: neither, and
    somebody had not come to a call yet. idle: the rest.
    """

    compute: float
    exposed: float
    waiting: float
    idle: float

    def as_dict(self) -> dict[str, float]:
        """Part -> seconds."""
        return asdict(self)

    @property
    def total(self) -> float:
        """The length of the step."""
        return sum(self.as_dict().values())


def step_share(begin: float, end: float, compute: Iterable[Stretch], calls: Iterable[Call]) -> StepShare:
    """Divide the time from `begin` to `end`; what lies outside does not count.

    A call waits until the last rank has come, and communicates from then on.
    """
    calls = list(calls)
    computing = clip(compute, begin, end)
    moving = clip(((max(b, min(came, e)), e) for b, e, came in calls), begin, end)
    waiting = clip(((b, min(came, e)) for b, e, came in calls), begin, end)
    return StepShare(
        length(computing),
        exposed(computing, moving),
        exposed([*computing, *moving], waiting),
        (end - begin) - length([*computing, *moving, *waiting]),
    )


def mean_share(shares: Sequence[StepShare]) -> StepShare:
    """The mean of several steps, part by part."""
    parts = zip(*(share.as_dict().values() for share in shares), strict=True)
    return StepShare(*(sum(part) / len(shares) for part in parts))


def clocks_ahead(ends: Sequence[Sequence[float]]) -> list[float]:
    """By how much each rank's clock is ahead of rank 0's.

    ends[rank]: when the rank left each of the same collectives, by its own clock. All leave together, but now
    and then one is woken late: so the median counts.
    """
    return [median([mine - first for mine, first in zip(e, ends[0], strict=True)] or [0.0]) for e in ends]


def stragglers(starts: Sequence[Sequence[float]]) -> list[tuple[int, float]]:
    """For each collective: the rank that came last, and how long the others waited for it together.

    starts[rank]: when the rank came to each of them, by one clock. Of those who came at the same moment the
    lowest rank.
    """
    return [_last(moments) for moments in zip(*starts, strict=True)]


def _last(moments: Sequence[float]) -> tuple[int, float]:
    latest = max(moments)
    return moments.index(latest), sum(latest - moment for moment in moments)
