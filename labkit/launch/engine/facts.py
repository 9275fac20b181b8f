"""The evidence about ranks as files in a job's directory, and the diagnosis made from them again."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import msgspec

from labkit.launch.failure.diagnose import RankFacts, diagnose
from labkit.launch.failure.errors import Diagnosis
from labkit.launch.handover.request import VERDICT, Request, records_path, status_path
from labkit.launch.handover.reserved import read_reserved, write_reserved
from labkit.record.agreement import find_disagreement
from labkit.record.state import PHASES, STARTING, State

_NOT_WHOLE = (ValueError, KeyError, TypeError, IndexError, msgspec.ValidationError)


def write_facts(directory: Path, facts: list[RankFacts]) -> None:
    """Write what is known about ranks; on a full disk nothing: the verdict has room of its own."""
    with contextlib.suppress(OSError):
        for fact in facts:
            write_reserved(status_path(directory, fact.rank), fact)


def read_facts(directory: Path, ranks: int) -> list[RankFacts]:
    """What is known about each rank; of one that left nothing whole, that it was starting."""
    found = []
    for rank in range(ranks):
        try:
            found.append(_read_fact(directory, rank))
        except (OSError, *_NOT_WHOLE):
            found.append(RankFacts(rank, State(PHASES[STARTING]), None, None))
    return found


def diagnose_directory(directory: Path) -> Diagnosis:
    """The diagnosis of a job from the files it left, read as data. ValueError when they are not whole."""
    try:
        request = Request.read(directory)
        told = msgspec.convert(read_reserved(directory / VERDICT), Diagnosis)
        if told.verdict == "finished":
            return told
        facts = [_read_fact(directory, rank) for rank in range(request.ranks)]
        wrong = find_disagreement([records_path(directory, rank) for rank in range(request.ranks)])
        return diagnose(told.reason, facts, request.timeout, wrong)
    except (OSError, *_NOT_WHOLE) as error:
        raise ValueError(f"the job in {directory} left no whole report: {error!r}") from error


def read_verdict(directory: Path) -> Diagnosis | None:
    """How the job ended, as its agent has written it; None when it has written nothing whole."""
    try:
        return msgspec.convert(read_reserved(directory / VERDICT), Diagnosis)
    except msgspec.ValidationError:
        return None


def _read_fact(directory: Path, rank: int) -> RankFacts:
    found = json.loads(status_path(directory, rank).read_bytes().rstrip(b"\0"))
    return msgspec.convert(found, RankFacts, str_keys=True)
