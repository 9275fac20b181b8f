"""Handles of collectives: one that nobody waits for may bring its numbers too late, however rarely."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.rank import Rank
from labkit.record.recorder import ASKED_AGAIN_AND_AGAIN

ASKING = ("get_future", "is_completed", "synchronize", "result")  # of a handle, in place of wait


@contextlib.contextmanager
def asked_handles(rank: Rank, name: str) -> Iterator[None]:
    """Fact "asked NAME": of how many handles something in ASKING is called inside; who waits so is in no
    recording. Who waits by asking a handle again and again is in there.
    """
    found: dict[int, tuple[dist.Work, int]] = {}  # by its address, with how often it was not over
    with contextlib.ExitStack() as stack:
        for method in ASKING:
            stack.callback(setattr, dist.Work, method, vars(dist.Work)[method])
            setattr(dist.Work, method, _noting(getattr(dist.Work, method), found))
        yield
    few = [asked for _, asked in found.values() if asked < ASKED_AGAIN_AND_AGAIN]
    rank.fact(f"asked {name}", len(few))


def _noting(original: Callable[..., Any], found: dict[int, tuple[dist.Work, int]]) -> Callable[..., Any]:
    def method(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
        result = original(work, *args, **kwargs)
        found[id(work)] = work, found.get(id(work), (work, 0))[1] + (result is False)
        return result

    return method


def waits_for_all(name: str) -> Judge:
    """Every collective of the recording of this name was waited for, as far as `asked_handles` can tell."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            calls = [call for call in answer.collectives[name] if call["source"] == "python"]
            left = [call["end"] for call in calls].count(None) - answer.facts[f"asked {name}"]
            seen = f"{left} of {len(calls)} were not"
            yield Finding(left <= 0, "every call waited for", seen, answer.rank)

    return judge
