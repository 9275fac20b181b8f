"""What ranks did in which order, as `Journal` wrote it down for a check."""

from __future__ import annotations

import msgspec

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.record.replay import Act


def acts_of(answer: RankAnswer) -> list[Act]:
    """What a rank did in a watched case."""
    return msgspec.convert(answer.facts["acts"], list[Act])


def all_waited_for(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Whether each call was waited for: who asks if it is done waits too, and no journal tells."""
    acts = acts_of(answer)
    started, waited = ({a.number for a in acts if a.kind == kind} for kind in ("start", "wait"))
    seen = f"{len(started - waited)} of {len(started)} were not"
    return Finding(started == waited, "every call waited for, by its wait()", seen, answer.rank)
