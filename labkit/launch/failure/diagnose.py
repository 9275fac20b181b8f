"""From what is known about each rank to a verdict and a sentence per rank. Pure: data in, `Diagnosis` out."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.launch.failure import words
from labkit.launch.failure.deadlock import find_mismatch, is_stuck
from labkit.launch.failure.errors import Diagnosis, Frame, RankReport, Related
from labkit.launch.handover.request import MAX_LOG_BYTES
from labkit.record.lines import is_library_file
from labkit.record.state import State

_LONG = 2.0  # seconds in one call after which it is not called progress


@dataclass(frozen=True)
class Exit:
    """How a process ended by itself: exit code, signal (0: none), and whether that was for want of memory."""

    code: int
    signal: int
    out_of_memory: bool = False


@dataclass(frozen=True)
class RankFacts:
    """Evidence about one rank.

    end: what the rank itself wrote when its function ended ("state", and for a failure "type", "message",
    "frames", "kind", "time", "waiting", "joining"); None when it wrote nothing. ended: None for a rank that
    the watchdog had to end. quiet: seconds since it last entered or left a call. printed: bytes. stopped:
    whether a signal held its process up.
    """

    rank: int
    state: State
    end: dict[str, Any] | None
    ended: Exit | None
    stack: str = ""
    quiet: float = 0.0
    printed: int = 0
    stopped: bool = False

    @property
    def failed(self) -> bool:
        return bool(self.end and self.end["state"] == "failed")

    @property
    def died(self) -> bool:
        """Ended by itself, or by someone else, without a word."""
        return self.end is None and self.ended is not None

    @property
    def in_a_call(self) -> bool:
        """Whether it failed or died while it waited in a communication call, or to meet the other ranks."""
        if self.end and self.failed:
            return bool(self.end["waiting"] or self.end.get("joining"))
        return self.state.phase == "waiting"


def diagnose(reason: str, facts: Sequence[RankFacts], timeout: float, wrong: str = "") -> Diagnosis:
    """Why a job ended.

    reason: "failed", "stuck", "deadline", "flood", "cancelled", "interrupted", or "disagreement": then
    `wrong` says which calls did not fit each other. timeout: the job's, in seconds.
    """
    return replace(_diagnose(reason, facts, timeout, wrong), reason=reason)


def on_nodes(diagnosis: Diagnosis, nodes: Sequence[str]) -> Diagnosis:
    """The diagnosis with each rank's node: in its line, and where the summary names the first rank."""
    if not nodes:
        return diagnosis

    def named(found: re.Match[str]) -> str:
        rank = int(found[1])
        return f"rank {rank} on {nodes[rank]}" if rank < len(nodes) and nodes[rank] else found[0]

    summary = re.sub(r"\brank (\d+)\b", named, diagnosis.summary, count=1)
    reports = tuple(replace(report, node=nodes[report.rank]) for report in diagnosis.ranks)
    return replace(diagnosis, summary=summary, ranks=reports)


def _diagnose(reason: str, facts: Sequence[RankFacts], timeout: float, wrong: str) -> Diagnosis:
    if reason == "failed":
        return _failed(facts)
    if reason == "stuck":
        return _deadlock(facts)
    if reason == "deadline":
        return _deadline(facts, timeout)
    reports = tuple(_report(fact) for fact in facts)
    if reason == "disagreement":
        return Diagnosis("error", wrong, None, reports, words.MISMATCH_HINT)
    if reason == "flood":
        return _flood(facts, reports)
    return Diagnosis(reason, f"the job was {reason}", None, reports)


def _flood(facts: Sequence[RankFacts], reports: tuple[RankReport, ...]) -> Diagnosis:
    loudest = max(facts, key=lambda fact: fact.printed).rank
    summary = f"rank {loudest} printed more than {MAX_LOG_BYTES >> 20} MiB"
    return Diagnosis("error", summary, loudest, reports, "print less, or write to a file")


# -- one rank


def _report(fact: RankFacts, first: bool = False) -> RankReport:
    frames = _frames(fact)
    state = _state(fact, first)
    wait = fact.state.wait
    waited = wait is not None and (state == "waiting" or bool(fact.end and fact.end.get("waiting")))
    line = f"{frames[-1].file}:{frames[-1].line}" if frames else ""
    if wait is not None and waited and wait.file:
        line = f"{wait.file}:{wait.line}"
    return RankReport(
        rank=fact.rank,
        state=state,
        waiting_for=words.wait(wait) if wait and waited else "",
        line=line,
        error=_error(fact) if state in ("failed", "killed") else "",
        traceback=frames if state != "finished" else (),
        **(_behind(fact) if state == "failed" else {}),
    )


def _behind(fact: RankFacts) -> dict[str, Any]:
    """Notes of the exception, and the exceptions behind it."""
    end = fact.end or {}
    related = tuple(
        Related(one["how"], f"{one['type']}: {one['message']}", _own_frames(one), tuple(one["notes"]))
        for one in end.get("related", ())
    )
    return {"notes": tuple(end.get("notes", ())), "related": related}


def _own_frames(end: dict[str, Any]) -> tuple[Frame, ...]:
    return tuple(
        Frame(**{**frame, "values": tuple((name, text) for name, text in frame.get("values", ()))})
        for frame in end.get("frames", ())
    )


def _state(fact: RankFacts, first: bool) -> str:
    if fact.failed:
        assert fact.end is not None
        if fact.end.get("kind") == "interrupted":
            return "waiting" if fact.end.get("waiting") else "running"
        if first or not fact.in_a_call:
            return "failed"
        return "waiting" if fact.end.get("waiting") else "starting"
    if fact.died:
        assert fact.ended is not None
        return "killed" if fact.ended.signal else "failed"
    return "finished" if fact.state.phase == "idle" else fact.state.phase


def _error(fact: RankFacts) -> str:
    if fact.end is not None:
        return f"{fact.end['type']}: {fact.end['message']}"
    assert fact.ended is not None
    if fact.state.phase == "failed":
        return f"it failed and could not write why: {words.LOCKED_OUT}"
    if fact.ended.out_of_memory:
        return "the system ended it because memory ran out (SIGKILL)"
    if fact.ended.signal:
        return words.killed_by(fact.ended.signal)
    return f"the process left with exit code {fact.ended.code} before the function returned (os._exit?)"


def _frames(fact: RankFacts) -> tuple[Frame, ...]:
    if fact.end is not None:
        return _own_frames(fact.end)
    return stack_frames(fact.stack)


def stack_frames(stack: str) -> tuple[Frame, ...]:
    """The user's frames of the last stack in a faulthandler file, outermost first."""
    last = stack.rpartition("Current thread")[2]
    last = last.split("\n\n")[0]
    lines = re.findall(r'File "(.*)", line (\d+) in (.*)', last)
    return tuple(
        Frame(file, int(line), name) for file, line, name in reversed(lines) if not is_library_file(file)
    )


# -- verdicts


def _failed(facts: Sequence[RankFacts]) -> Diagnosis:
    first = _first_failure(facts)
    reports = tuple(_report(fact, fact is first) for fact in facts)
    states = [fact.state for fact in facts]
    if (first.died or first.in_a_call) and first.state.wait is not None:
        mismatch = find_mismatch(first.rank, first.state.wait, states)
        if mismatch and mismatch.kind not in ("tag", "group"):
            summary = words.mismatch(mismatch)
            return Diagnosis("error", summary, first.rank, reports, words.MISMATCH_HINT)
    verdict, hint = _verdict(first)
    if verdict == "interrupted":
        return Diagnosis(verdict, "the cell was interrupted", first.rank, reports)
    how = "was killed" if first.died and verdict != "error" else "failed"
    summary = f"rank {first.rank} {how}: {_error(first)}"
    return Diagnosis(verdict, summary, first.rank, reports, hint)


def _first_failure(facts: Sequence[RankFacts]) -> RankFacts:
    """The rank whose failure made the others fail: one that died or raised outside communication, if any."""
    failed = [fact for fact in facts if fact.failed]
    own = [fact for fact in failed if not fact.in_a_call]
    died = sorted((fact for fact in facts if fact.died), key=lambda fact: fact.in_a_call)
    by_time = sorted(own or ([] if died else failed), key=lambda fact: fact.end["time"] if fact.end else 0.0)
    first = (by_time + died)[0]
    alike = [fact for fact in own if fact.end and first.end and _same_error(fact.end, first.end)]
    return min(alike, key=lambda fact: fact.rank, default=first)


def _same_error(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two ranks failed alike at the same place, as they do when the code is wrong everywhere."""
    return one["type"] == other["type"] and [f["line"] for f in one["frames"]] == [
        f["line"] for f in other["frames"]
    ]


def _verdict(fact: RankFacts) -> tuple[str, str]:
    if fact.end is not None:
        kind = fact.end.get("kind")
        if kind == "out_of_memory":
            return "out_of_memory", "use smaller tensors or fewer ranks"
        if kind == "interrupted":
            return "interrupted", ""
        if kind == "disk_full":
            return "infrastructure", "free some space on the disk of the temporary directory (TMPDIR)"
        return "error", words.ITSELF_HINT if _received_from_itself(fact) else ""
    assert fact.ended is not None
    if fact.ended.out_of_memory:
        return "out_of_memory", "use smaller tensors or fewer ranks"
    if fact.ended.signal == signal.SIGKILL:
        return "killed", "when nobody sent this signal, it was the system running out of memory"
    return ("killed", "") if fact.ended.signal else ("error", "")


def _received_from_itself(fact: RankFacts) -> bool:
    """Whether it failed in a message from itself, of which gloo says that a pair is not connected."""
    wait, message = fact.state.wait, (fact.end or {}).get("message", "")
    return wait is not None and wait.op == "recv" and wait.peer == fact.rank and "not connected" in message


def _deadlock(facts: Sequence[RankFacts]) -> Diagnosis:
    reports = tuple(_report(fact) for fact in facts)
    states = [fact.state for fact in facts]
    for fact in facts:
        wait = fact.state.wait
        if fact.state.phase == "waiting" and wait is not None:
            mismatch = find_mismatch(fact.rank, wait, states)
            if mismatch:
                summary = "deadlock: " + words.mismatch(mismatch)
                return Diagnosis("deadlock", summary, fact.rank, reports, words.MISMATCH_HINT)
    rank, summary, hint = words.deadlock(states)
    return Diagnosis("deadlock", "deadlock: " + summary, rank, reports, hint)


def _deadline(facts: Sequence[RankFacts], timeout: float) -> Diagnosis:
    if any(fact.stopped for fact in facts):
        return _stopped(facts, timeout)
    states = [fact.state for fact in facts]
    if all(state.phase in ("waiting", "finished", "idle") for state in states) and is_stuck(states):
        return _deadlock(facts)
    reports = tuple(_report(fact) for fact in facts)
    busy = [report for report in reports if report.state in ("running", "starting")]
    after = f"the job did not finish within {timeout:g} s"
    if not busy:
        quiet = min(fact.quiet for fact in facts if fact.state.phase == "waiting")
        hint = "give a larger timeout, or communicate less"
        if quiet > _LONG:
            hint = (
                f"for {quiet:.0f} s no call has ended: what they wait for does not come; compare their lines"
            )
        return Diagnosis("timeout", f"{after}: every rank was still communicating", None, reports, hint)
    summary = f"{after}: {words.ranks([report.rank for report in busy])} still {busy[0].state}"
    hint = "a loop that does not end, or a timeout that is too short"
    first = next(fact for fact in facts if fact.rank == busy[0].rank)
    if (inside := words.communicates_by_itself(first.stack)) and len(busy) < len(facts):
        summary += f", inside {inside}, where torch communicates by itself, and other ranks are not"
        hint = "every rank must come there, and as often: what it waits for does not come by itself"
    return Diagnosis("timeout", summary, busy[0].rank, reports, hint)


def _stopped(facts: Sequence[RankFacts], timeout: float) -> Diagnosis:
    numbers = [fact.rank for fact in facts if fact.stopped]
    which = f"{words.ranks(numbers)} {'was' if len(numbers) == 1 else 'were'}"
    summary = f"the job did not finish within {timeout:g} s: {which} stopped by a signal (SIGSTOP)"
    hint = "a process that is stopped does nothing until it is sent SIGCONT: look for who sent the signal"
    return Diagnosis("timeout", summary, numbers[0], tuple(_report(fact) for fact in facts), hint)
