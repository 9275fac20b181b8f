"""A failed job as text for a person: what, where, what each rank did, what to try."""

from __future__ import annotations

import re
from collections.abc import Sequence

from labkit.launch.failure.errors import Diagnosis, RankReport

_MOST_RANKS = 16
_STUB = re.compile(r"NotImplementedError: \d\d\.[\w-]+: not written yet")  # what exercises start as


def failure_text(diagnosis: Diagnosis, output: Sequence[str]) -> str:
    """Several lines: the summary, the first rank's own traceback, one line a rank, the hint."""
    if stub := _stub(diagnosis):
        return stub
    parts = [diagnosis.summary]
    first = next((report for report in diagnosis.ranks if report.rank == diagnosis.rank), None)
    if first is not None and first.traceback:
        parts += ["", *_traceback(first)]
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


def _traceback(report: RankReport) -> list[str]:
    lines = [f"On {report.name}:"]
    for frame in report.traceback:
        lines.append(f"  {frame.file}, line {frame.line}, in {frame.function}")
        if frame.source:
            lines.append(f"    {frame.source}")
    return [*lines, *([f"  {report.error}"] if report.error else [])]


def rank_line(report: RankReport) -> str:
    """'  rank 2: waiting in all_reduce of float32 (4,), call 1 on ranks 0 and 1, at In[3]:7'."""
    where = f", at {report.line}" if report.line and report.state != "finished" else ""
    if report.state == "waiting":
        return f"  {report.name}: waiting in {report.waiting_for or 'a call'}{where}"
    error = f": {report.error.splitlines()[0][:160]}" if report.error else ""
    return f"  {report.name}: {report.state}{error}{where}"
