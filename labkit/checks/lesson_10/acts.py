"""What ranks did in which order, as `Journal` wrote it down for a check."""

from __future__ import annotations

import msgspec

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.shared.beside import calls_text
from labkit.checks.shared.twins import each_once
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


def all_from_python(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Whether torch.distributed's functions made each call: of others, such as functional collectives, no
    journal tells how long they were under way.
    """
    calls = each_once(answer.collectives["training"])
    others = [c for c in calls if c["source"] != "python"]
    unseen = len(calls) - len(others) - sum(act.kind == "start" for act in acts_of(answer))
    seen = calls_text([(c["op"], c["num_bytes"]) for c in others])
    told = "communication through torch.distributed's own calls"
    found = f"{seen} by functional collectives, {unseen} calls by other ways"
    return Finding(not others and not unseen, told, found, answer.rank)
