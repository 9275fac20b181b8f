"""Whether buckets leave in turn, in any module: as soon as their gradients are there, not behind backward."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from torch import nn

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_08.buckets import make_buckets
from labkit.checks.lesson_08.net import STEPS, net_of
from labkit.checks.rank import Rank
from labkit.checks.shared.company import in_company
from labkit.checks.shared.twins import each_once


class Ready:
    """When each parameter's gradient is there, in each backward. Made before the student's own hooks are, so
    that these come behind.
    """

    def __init__(self, net: nn.Module):
        self._steps: list[list[dict[str, float]]] = []
        for name, p in net.named_parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(lambda _, name=name: self._note(name))

    def begins_step(self) -> None:
        """What comes next is of another step."""
        self._steps.append([])

    def begins_backward(self) -> None:
        """What comes next is of another backward."""
        self._steps[-1].append({})

    def tell(self, rank: Rank, step: int, begin: float) -> None:
        """Fact "ready STEP": for each backward the seconds since `begin`, by name."""
        found = [{name: moment - begin for name, moment in seen.items()} for seen in self._steps[step]]
        rank.fact(f"ready {step}", [dict(seen) for seen in found])

    def _note(self, name: str) -> None:
        self._steps[-1][-1].setdefault(name, time.monotonic())


def leave_in_turn(evidence: Evidence) -> Iterator[Finding]:
    """Where every rank uses all of it: when a gradient comes, of the buckets that were complete before, and
    all those in front of them, at most the last has not begun to leave.
    """
    case = evidence.case
    if not _all_used(case):
        return
    buckets = make_buckets(net_of(case), case.params["bucket_bytes"])
    for answer in in_company(evidence):
        for step in range(STEPS):
            for seen in answer.facts[f"ready {step}"]:
                yield from _in_turn(answer, step, buckets, seen)


def _all_used(case: Case) -> bool:
    return "both" not in case.params and "unused" not in case.params.get("parts", ())


def _in_turn(
    answer: RankAnswer, step: int, buckets: Sequence[Sequence[str]], seen: dict[str, float]
) -> Iterator[Finding]:
    if not all(name in seen for names in buckets for name in names):
        return  # numbers tell what became of it
    calls = each_once(answer.collectives[f"step {step}"])
    starts = [call["start"] for call in calls if call["op"] == "reduce_scatter"]
    first = min(seen.values())
    complete = [max(seen[name] for names in buckets[: n + 1] for name in names) for n in range(len(buckets))]
    for moment in sorted({*complete}):
        before = sum(other < moment for other in complete)
        begun = sum(first <= start < moment for start in starts)
        told = (
            f"step {step + 1}: {max(0, before - 1)} buckets or more begun to leave when {before} are complete"
        )
        yield Finding(begun >= before - 1, told, str(begun), answer.rank)
