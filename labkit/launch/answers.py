"""What the answers of a session's ranks say of a cell: what it did, or how it failed on some of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from labkit.launch.cell import CellResult
from labkit.launch.failure.diagnose import RankFacts, diagnose, on_nodes
from labkit.launch.failure.errors import LaunchError, error_for
from labkit.launch.handover.notebook_graph import travels
from labkit.launch.job import Job
from labkit.launch.names import readable
from labkit.record.state import IDLE, PHASES, State

_NO_NAME = re.compile(r"^NameError: name '(\w+)' is not defined")


def result_of(
    ranks: Sequence[int],
    answers: Mapping[int, Mapping[str, Any]],
    output: Sequence[str],
    nodes: Sequence[str],
) -> CellResult:
    """What the cell did on these ranks, of which some may not have answered. output: what each printed."""

    def told(key: str) -> dict[int, str]:
        return {rank: answers.get(rank, {}).get(key, "") for rank in ranks}

    return CellResult(
        tuple(ranks),
        {rank: output[rank] for rank in ranks},
        told("value"),
        told("html"),
        nodes=nodes,
        displayed=told("displayed"),
    )


def failed_of(answers: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """The ranks that say that the cell failed."""
    return sorted(rank for rank, answer in answers.items() if not answer["ok"])


def error_of(answers: Mapping[int, Mapping[str, Any]], job: Job, output: Sequence[str]) -> LaunchError | None:
    """The error that fits the answers, by rank; None where all went well. output: what each rank printed."""
    if all(answer["ok"] for answer in answers.values()):
        return None
    clocks = job.run.clocks()
    facts = [
        RankFacts(rank, _state(job, rank, answer), _on_the_clock(answer.get("error"), clocks[rank]), None)
        for rank, answer in sorted(answers.items())
    ]
    return error_for(readable(on_nodes(diagnose("failed", facts, 0.0), job.nodes)), list(output))


def _on_the_clock(error: Mapping[str, Any] | None, clock: float) -> dict[str, Any] | None:
    """What a rank says of its failure, with the time of it as all ranks' clocks have it."""
    return None if error is None else {**error, "time": error["time"] + clock}


def unmentioned(error: LaunchError, notebook: Mapping[str, Any]) -> list[str]:
    """A sentence on a name that the ranks lack and the notebook has: the cell's source does not use it."""
    found = {name for report in error.ranks for name in _NO_NAME.findall(report.error)}
    return [
        f"the notebook has `{name}`, but a name that only a text has (for eval, exec, a query) does not come "
        f"along: use it in the cell as well, or begin the cell with `%%ranks --push {name}`"
        for name in sorted(found)
        if travels(name, notebook)
    ]


def disagreement(wrong: str, output: Sequence[str]) -> LaunchError:
    """The error of a cell that ran to its end with calls that did not fit each other."""
    told = readable(diagnose("disagreement", [], 0.0, wrong))
    return error_for(told, list(output))


def _state(job: Job, rank: int, answer: Mapping[str, Any]) -> State:
    """Of a rank that has answered, and waits since: where it failed, if it did."""
    if not answer["ok"]:
        return msgspec.convert(answer["error"]["page"], State, str_keys=True)
    return replace(job.run.state(rank), phase=PHASES[IDLE])
