"""A request to run cases, and the answers to it, as files that hold data only (safetensors and JSON).

Nothing here is ever unpickled, so a directory written by student code is safe to read. What is read is
bounded first.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from labkit.checks.case import Case, Inputs, RankAnswer, StudentError
from labkit.checks.source.submission import Submission
from labkit.whole_file import write_whole

REQUEST = "request.json"
LONGEST_MESSAGE = 2000  # characters of a student's error
SEPARATOR = "\x1f"  # between a case's name and a tensor's


class BadAnswer(Exception):
    """A file of answers is not what a rank of ours writes."""


@dataclass
class RunRequest:
    """The cases of one exercise that run in one job.

    submission: the student's statements, with reference versions of earlier exercises when grading.
    own_parts: the same without any reference version, for cases that ask for it.

    As JSON, the cases have lost the values only the judge may see.
    """

    exercise: str
    cases: list[Case]
    submission: Submission
    own_parts: Submission
    ranks: int
    timeout: float

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads, without what only the judge may see."""
        return {
            "exercise": self.exercise,
            "cases": [c.to_json() | {"expected": {}} for c in self.cases],
            "submission": self.submission.to_json(),
            "own_parts": self.own_parts.to_json(),
            "ranks": self.ranks,
            "timeout": self.timeout,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunRequest:
        """The request that `to_json` wrote."""
        return cls(
            exercise=data["exercise"],
            cases=[Case.from_json(c) for c in data["cases"]],
            submission=Submission.from_json(data["submission"]),
            own_parts=Submission.from_json(data["own_parts"]),
            ranks=data["ranks"],
            timeout=data["timeout"],
        )


@dataclass(frozen=True)
class Limits:
    """The most that is read from a directory student code has written to."""

    file_bytes: int = 256 * 2**20
    tensors: int = 2000
    json_bytes: int = 8 * 2**20


@dataclass
class CaseAnswers:
    """What came back from one case: an answer a rank, or the errors that kept ranks from answering."""

    answers: list[RankAnswer] = field(default_factory=list)
    errors: dict[int, StudentError] = field(default_factory=dict)


def write_request(request: RunRequest, handed: Mapping[str, Sequence[Inputs]], directory: Path) -> None:
    """Put a request into an empty directory, and for each rank a file with what it is handed.

    handed: case name -> for each rank, name -> tensor.
    """
    for rank in range(request.ranks):
        tensors = {
            f"{case}{SEPARATOR}{name}": tensor.contiguous()
            for case, of_ranks in handed.items()
            for name, tensor in of_ranks[rank].items()
        }
        safetensors.torch.save_file(tensors, directory / inputs_name(rank))
    (directory / REQUEST).write_text(json.dumps(request.to_json()))


def read_request(directory: Path, rank: int) -> tuple[RunRequest, dict[str, Inputs]]:
    """The request in a directory, and what one rank is handed in each case."""
    request = RunRequest.from_json(json.loads((directory / REQUEST).read_text()))
    inputs: dict[str, Inputs] = {case.name: {} for case in request.cases}
    for key, tensor in safetensors.torch.load_file(directory / inputs_name(rank)).items():
        case, name = key.split(SEPARATOR)
        inputs.setdefault(case, {})[name] = tensor
    return request, inputs


def inputs_name(rank: int) -> str:
    """The file that holds what one rank is handed."""
    return f"inputs.rank{rank}.safetensors"


def answer_names(request: RunRequest) -> list[str]:
    """The files that a job may leave: for each case and rank what it answered, and that it began."""
    pairs = [(case, rank) for case in range(len(request.cases)) for rank in range(request.ranks)]
    return [name(case, rank) for case, rank in pairs for name in (_tensors, _report, _begun)]


def mark_begun(directory: Path, case_index: int, rank: int) -> None:
    """Leave a sign that a rank has begun a case: what fails from now on may be the case's doing."""
    (directory / _begun(case_index, rank)).touch()


def was_begun(directory: Path, case_index: int, ranks: int) -> bool:
    """Whether some rank has begun a case."""
    return any((directory / _begun(case_index, rank)).exists() for rank in range(ranks))


def write_answer(
    directory: Path, case_index: int, rank: int, answer: RankAnswer, error: StudentError | None
) -> None:
    """Write what a rank reports of a case. The JSON file comes last, whole or not at all."""
    safetensors.torch.save_file(answer.tensors, directory / _tensors(case_index, rank))
    report = {
        "facts": answer.facts,
        "collectives": answer.collectives,
        "errors": {name: asdict(e) for name, e in answer.errors.items()},
        "error": asdict(error) if error else None,
    }
    write_whole(directory / _report(case_index, rank), json.dumps(report, default=_not_data).encode())


def read_answers(
    directory: Path, request: RunRequest, case_index: int, limits: Limits = Limits()
) -> CaseAnswers | None:
    """What the ranks wrote about a case; None when some rank has not reported on it.

    BadAnswer when a file is too large, not regular, or not the data it should be.
    """
    if len(reported_ranks(directory, case_index, request.ranks)) < request.ranks:
        return None
    reports = [_read_report(directory, case_index, rank, limits) for rank in range(request.ranks)]
    return CaseAnswers(
        [answer for answer, _ in reports], {answer.rank: error for answer, error in reports if error}
    )


def reported_ranks(directory: Path, case_index: int, ranks: int) -> list[int]:
    """The ranks that have reported on a case so far."""
    return [r for r in range(ranks) if (directory / _report(case_index, r)).exists()]


def reported_errors(
    directory: Path, case_index: int, ranks: int, limits: Limits = Limits()
) -> dict[int, StudentError]:
    """Errors of the ranks that have reported on a case, whether or not the others have."""
    present = reported_ranks(directory, case_index, ranks)
    reports = [_read_report(directory, case_index, rank, limits) for rank in present]
    return {answer.rank: error for answer, error in reports if error}


def _read_report(
    directory: Path, index: int, rank: int, limits: Limits
) -> tuple[RankAnswer, StudentError | None]:
    try:
        report = json.loads(read_bounded(directory / _report(index, rank), limits.json_bytes))
        tensors = safetensors.torch.load(read_bounded(directory / _tensors(index, rank), limits.file_bytes))
        if len(tensors) > limits.tensors:
            raise BadAnswer(f"rank {rank} sent {len(tensors)} tensors; at most {limits.tensors} are read")
        errors = {str(name): _student_error(e) for name, e in dict(report["errors"]).items()}
        error = _student_error(report["error"]) if report["error"] else None
        return RankAnswer(rank, tensors, dict(report["facts"]), dict(report["collectives"]), errors), error
    except BadAnswer:
        raise
    except Exception as problem:
        raise BadAnswer(
            f"rank {rank} sent something that is not an answer: {type(problem).__name__}: {problem}"
        ) from None


def _student_error(data: Mapping[str, Any]) -> StudentError:
    told = {name: str(data[name])[:LONGEST_MESSAGE] for name in ("type", "message", "where")}
    return StudentError(**told)


def read_bounded(path: Path, most: int) -> bytes:
    """A regular file's bytes, never following a link. BadAnswer when it is something else or larger than
    `most`.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BadAnswer(f"{path.name} cannot be read: {error.strerror}") from None
    with os.fdopen(handle, "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise BadAnswer(f"{path.name} is not a regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise BadAnswer(f"{path.name} has more than {most} bytes")
    return data


def _report(case_index: int, rank: int) -> str:
    return f"case{case_index}.rank{rank}.json"


def _tensors(case_index: int, rank: int) -> str:
    return f"case{case_index}.rank{rank}.safetensors"


def _begun(case_index: int, rank: int) -> str:
    return f"case{case_index}.rank{rank}.begun"


def _not_data(value: object) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, set):
        return list(value)
    raise TypeError(f"expected a number, a text, a list or a dict, found {type(value).__name__}")
