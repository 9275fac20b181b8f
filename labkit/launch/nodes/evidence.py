"""Why a job over several nodes ended: from what its nodes left, and what Slurm says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from labkit.launch.engine.facts import read_facts
from labkit.launch.failure import words
from labkit.launch.failure.diagnose import RankFacts, diagnose
from labkit.launch.failure.errors import Diagnosis
from labkit.launch.handover.request import Request, records_path
from labkit.launch.nodes.files import Report
from labkit.record.agreement import find_disagreement
from labkit.slurm.commands import JobState, unwell

_BY_SLURM = {
    "CANCELLED": ("cancelled", "the Slurm job was cancelled (scancel, or the operator)", ""),
    "TIMEOUT": ("timeout", "the Slurm job reached its time limit", "ask for more time (--time)"),
    "DEADLINE": ("timeout", "the Slurm job reached its deadline", ""),
    "PREEMPTED": ("infrastructure", "the Slurm job was preempted by one with more priority", "launch again"),
    "OUT_OF_MEMORY": ("out_of_memory", "Slurm ended the job for its memory", "use fewer ranks a node"),
    "NODE_FAIL": ("infrastructure", "a node of the Slurm job failed", "launch again: Slurm avoids the node"),
}

_NOISE = re.compile(r"[IW]\d{4} |.*lacks support for cpu binding")  # torch's remarks, and one of srun's


def diagnose_nodes(
    directory: Path,
    request: Request,
    reports: Mapping[int, Report],
    stopping: str,
    state: JobState | None,
    silent: Sequence[str] = (),
) -> Diagnosis:
    """The diagnosis of a job that has ended.

    reports: of the nodes that arrived. stopping: why we ended it ourselves ("cancelled", "interrupted"), or
    "". state: what Slurm says of the job, None when that does not matter. silent: nodes that are not heard.
    """
    told = list(reports.values())
    if all_finished(reports, request):
        return _finished(directory, request)
    facts = read_facts(directory, request.ranks)
    if stopping:
        return diagnose(stopping if _is_known(stopping, facts) else "cancelled", facts, request.timeout)
    whole = _whole(told, request)
    down = [] if whole else list(silent) or unwell([report.node for report in told])
    if not down and not whole and state is not None and state.state in _BY_SLURM:
        verdict, summary, hint = _BY_SLURM[state.state]
        return Diagnosis(verdict, summary, hint=hint)
    if state is not None and state.hopeless:
        hint = "ask for less, for another partition, or wait longer (queue=)"
        return Diagnosis("infrastructure", state.why_hopeless(), hint=hint)
    if not whole:
        hint = "launch again; if it happens again, leave that node out (--exclude) and tell the operator"
        return Diagnosis("infrastructure", _lost(told, request, down), hint=hint)
    return _as_told(told, facts)


def all_finished(reports: Mapping[int, Report], request: Request) -> bool:
    """Whether every node has told that all its ranks returned: Slurm has nothing to add to that."""
    return len(reports) == request.nodes and all(report.state == "finished" for report in reports.values())


def _whole(told: Sequence[Report], request: Request) -> bool:
    """Whether every node has lived to tell how its ranks ended."""
    return len(told) == request.nodes and all(report.state in ("finished", "ended") for report in told)


def _lost(told: Sequence[Report], request: Request, down: Sequence[str]) -> str:
    """Which nodes did not, in words. down: those that are in Slurm's eyes; their end takes others with it."""
    gone = [report for report in told if report.node in down]
    gone = gone or [report for report in told if report.state not in ("finished", "ended")]
    if len(told) < request.nodes:
        arrived = ", ".join(sorted(report.node for report in told)) or "none"
        return f"of {request.nodes} nodes only these started: {arrived}"
    names = " and ".join(sorted(report.node for report in gone))
    lost = sorted(rank for report in gone for rank in report.numbers)
    with_ranks = f", with {words.ranks(lost)}" if lost else ""
    return f"node{'s' * (len(gone) > 1)} {names} died{with_ranks}: nothing was heard from there any more"


def _finished(directory: Path, request: Request) -> Diagnosis:
    wrong = find_disagreement([records_path(directory, rank) for rank in range(request.ranks)])
    if wrong:
        return diagnose("disagreement", read_facts(directory, request.ranks), request.timeout, wrong)
    return Diagnosis("finished", "every rank finished")


def _is_known(reason: str, facts: Sequence[RankFacts]) -> bool:
    """Whether the evidence is there that a diagnosis for this reason is made of."""
    if reason == "stuck":
        return any(fact.state.phase == "waiting" and fact.state.wait for fact in facts)
    return reason != "failed" or any(fact.failed or fact.died for fact in facts)


def _as_told(told: Sequence[Report], facts: Sequence[RankFacts]) -> Diagnosis:
    reasons = [report.reason for report in told if report.reason]
    reason = next((r for r in reasons if r != "lost"), "lost")
    if not _is_known(reason, facts):
        summary = f"the job ended ({reason}), and there was no room to write down how"
        hint = "free some space in the folder of your jobs: that of LABKIT_SHARED, else ~/.labkit"
        return Diagnosis("infrastructure", summary, hint=hint)
    if reason in ("failed", "stuck", "deadline", "flood", "cancelled", "interrupted"):
        return diagnose(reason, facts, max(report.timeout for report in told))
    if reason == "lost":
        reason = "the nodes lost the connection between them"
    return Diagnosis("infrastructure", reason, hint="launch again; your code is not to blame")


def with_words(diagnosis: Diagnosis, log: str) -> Diagnosis:
    """The diagnosis with the last of what srun and the agents wrote, where our own words are not enough."""
    lines = [line for line in log.splitlines() if line.strip() and not _NOISE.match(line)]
    return replace(diagnosis, summary="\n".join([diagnosis.summary, *lines[-5:]]))
