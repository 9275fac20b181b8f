"""How a job can fail, as exceptions whose text tells a person what to do."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_RANKS = 16
_ARROW = "--> "  # before the line of the student's that it happened in
_WIDTH = 96  # characters: what fits beside JupyterLab's file browser in a window of 1280 pixels
_STUB = re.compile(r"NotImplementedError: \d\d\.[\w-]+: not written yet")  # what exercises start as


@dataclass(frozen=True)
class Frame:
    """One line of a traceback. values: of a session's ranks, what its variables were, as texts by name."""

    file: str
    line: int
    function: str
    source: str = ""
    values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Related:
    """An exception behind another. how: "caused by", "while handling", "part 1 of 2"."""

    how: str
    error: str
    traceback: tuple[Frame, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankReport:
    """How one rank ended.

    state: "finished", "failed", "killed", "waiting", "running" or "starting" (when the job was ended).
    waiting_for: what it waited for, in words; "" when it did not wait.
    line: the last known line of the user's own code, as "file:number".
    error: what it raised or died of, in one line. traceback: the user's frames, outermost first.
    node: the machine it ran on, where a job has several. notes, related: of the exception.
    """

    rank: int
    state: str
    waiting_for: str = ""
    line: str = ""
    error: str = ""
    traceback: tuple[Frame, ...] = ()
    node: str = ""
    notes: tuple[str, ...] = ()
    related: tuple[Related, ...] = ()

    @property
    def name(self) -> str:
        """'rank 2', or 'rank 2 on n1' where a job has several nodes."""
        return f"rank {self.rank}" + (f" on {self.node}" if self.node else "")


@dataclass(frozen=True)
class Diagnosis:
    """Why a job failed: a verdict, the rank that failed first (None: not one rank's doing), and all ranks.

    verdict: "error", "deadlock", "timeout", "killed", "out_of_memory", "infrastructure", "cancelled",
    "interrupted", or "finished". reason: what the job was ended for, as `diagnose` takes it; "" where nobody
    ended it.
    """

    verdict: str
    summary: str
    rank: int | None = None
    ranks: tuple[RankReport, ...] = ()
    hint: str = ""
    reason: str = ""


def failure_text(diagnosis: Diagnosis, output: Sequence[str]) -> str:
    """Several lines: the summary, the first rank's own traceback, one line a rank, the hint."""
    if stub := _stub(diagnosis):
        return stub
    parts = [diagnosis.summary]
    first = next((report for report in diagnosis.ranks if report.rank == diagnosis.rank), None)
    if first is not None and (first.traceback or first.related or first.notes):
        parts += ["", *_raised(first)]
    if diagnosis.verdict == "killed" and first is not None and output and output[first.rank].strip():
        parts += ["", f"its last output: {output[first.rank].strip().splitlines()[-1][:300]}"]
    if diagnosis.ranks:
        parts += ["", *(rank_line(report) for report in diagnosis.ranks[:_MOST_RANKS])]
        if len(diagnosis.ranks) > _MOST_RANKS:
            parts.append(f"  ... and {len(diagnosis.ranks) - _MOST_RANKS} more ranks")
    if diagnosis.hint:
        parts += ["", f"Hint: {diagnosis.hint}."]
    return "\n".join(parts)


def _stub(diagnosis: Diagnosis) -> str:
    """One line for a job that stopped at an exercise nobody has written yet; "" for any other."""
    first = next((report for report in diagnosis.ranks if report.rank == diagnosis.rank), None)
    if first is None or not _STUB.fullmatch(first.error):
        return ""
    where = f" ({first.line})" if first.line else ""
    return f"{diagnosis.summary}{where}. Write this exercise, run its cell, then run this one."


def _raised(report: RankReport) -> list[str]:
    lines = [f"On {report.name}:", *_traceback(report.traceback, report.error, report.notes, _ARROW)]
    for one in report.related:
        lines += [f"  {one.how}:", *_traceback(one.traceback, one.error, one.notes)]
    return lines


def _traceback(frames: Sequence[Frame], error: str, notes: Sequence[str], last: str = "    ") -> list[str]:
    """last: what stands before the source of the last frame."""
    lines = []
    for number, frame in enumerate(frames, 1):
        lines.append(f"  {frame.file}, line {frame.line}, in {frame.function}")
        if frame.source:
            lines.append(f"{last if number == len(frames) else '    '}{frame.source}")
    lines += [f"  {error}"] if error else []
    return lines + [f"  {line}" for note in notes for line in note.splitlines()]


def locals_text(diagnosis: Diagnosis, rank: int | None = None) -> str:
    """The variables of the frames in which a rank failed (None: the first that did), innermost first."""
    failed = [report for report in diagnosis.ranks if report.state == "failed" and report.traceback]
    if not failed:
        return "no rank has failed in a line of yours: there are no variables to show"
    wanted = diagnosis.rank if rank is None else rank
    report = next((report for report in failed if wanted in (None, report.rank)), None)
    if report is None:
        others = ", ".join(str(report.rank) for report in failed)
        return f"rank {wanted} did not fail with an error: choose one of {others}"
    lines = [f"On {report.name}: {report.error}"]
    for frame in reversed(report.traceback):
        lines += [f"{frame.file}, line {frame.line}, in {frame.function}", f"    {frame.source}"]
        lines += [f"  {name} = {value}" for name, value in frame.values]
    return "\n".join(lines)


def rank_line(report: RankReport) -> str:
    """'  rank 2: waiting in all_reduce of float32 (4,), call 1 on ranks 0 and 1, at In[3]:7'."""
    where = f", at {report.line}" if report.line and report.state != "finished" else ""
    if report.state == "waiting":
        return f"  {report.name}: waiting in {report.waiting_for or 'a call'}{where}"
    error = textwrap.shorten(report.error.partition("\n")[0], 160, placeholder=" …")
    return f"  {report.name}: {report.state}{f': {error}' if error else ''}{where}"


class LaunchError(RuntimeError):
    """A job that did not finish. `str()` of it is written for the person who wrote the code."""

    def __init__(self, diagnosis: Diagnosis, output: Sequence[str] = ()) -> None:
        super().__init__(diagnosis, output)
        self.diagnosis = diagnosis
        self.output = list(output)

    @property
    def verdict(self) -> str:
        """One of the verdicts of `Diagnosis`."""
        return self.diagnosis.verdict

    @property
    def rank(self) -> int | None:
        """The rank that failed first; None where it was not a rank."""
        return self.diagnosis.rank

    @property
    def ranks(self) -> Sequence[RankReport]:
        """What is known of each rank, in order."""
        return self.diagnosis.ranks

    def __str__(self) -> str:
        return "\n\n".join([failure_text(self.diagnosis, self.output), *getattr(self, "__notes__", ())])

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of the frames of the launcher, which are nobody's business."""
        first, *others = f"{type(self).__name__}: {self}".splitlines()
        return [
            _bold(first),
            *(_bold(line) if line.startswith(_ARROW) else _wrapped(line) for line in others),
        ]


def _bold(line: str) -> str:
    """For a terminal; JupyterLab shows it so too. Bold and no colour: that stands out in every theme."""
    return f"\x1b[1m{_wrapped(line)}\x1b[0m"


def _wrapped(line: str) -> str:
    """In several lines, if it is a long one: JupyterLab breaks lines in the middle of a word."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line,
        _WIDTH,
        subsequent_indent=f"{indent}  ",
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )


class NotNow(RuntimeError):
    """What a session or a job cannot do as it stands; the text says why."""


class RankError(LaunchError):
    """A rank raised an exception, or left before its function returned."""


class DeadlockError(LaunchError):
    """Ranks wait for each other, or for something that cannot come."""


class JobTimeout(LaunchError):
    """The job did not finish within its `timeout`."""


class RankKilled(LaunchError):
    """A rank was ended by a signal: a crash in compiled code, or someone's kill."""


class OutOfMemory(LaunchError):
    """A rank ran out of memory."""


class InfrastructureError(LaunchError):
    """The launcher, the machine or the disk failed; the code that ran is not to blame."""


class JobCancelled(LaunchError):
    """The job was cancelled or interrupted."""


_CLASSES: dict[str, type[LaunchError]] = {
    "error": RankError,
    "deadlock": DeadlockError,
    "timeout": JobTimeout,
    "killed": RankKilled,
    "out_of_memory": OutOfMemory,
    "infrastructure": InfrastructureError,
    "cancelled": JobCancelled,
    "interrupted": JobCancelled,
}


def error_for(diagnosis: Diagnosis, output: list[str]) -> LaunchError:
    """The exception that fits a diagnosis."""
    return _CLASSES[diagnosis.verdict](diagnosis, output)
