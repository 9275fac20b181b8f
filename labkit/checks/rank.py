"""What a check sees on one rank: the student's names, the inputs, and where to put answers."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from types import ModuleType, TracebackType

import msgspec
import torch
import torch.distributed as dist

from labkit.checks.case import JSON, Case, Inputs, RankAnswer, StudentError
from labkit.checks.files import LONGEST_MESSAGE
from labkit.checks.forbidden import ForbiddenCall
from labkit.checks.settled import AtOnce
from labkit.checks.source.submission import MODULE_NAME, ONLY_DEFINITIONS, Submission
from labkit.checks.traffic import traffic_of_block
from labkit.record.journal import Journal
from labkit.record.recorder import Recorder
from labkit.record.replay import Act

_WAYS_IN = ("__torch_function__", "__torch_dispatch__")  # of a class of tensors, to what torch does with them
LATE = 0.1  # seconds: long enough for the others to go on, if they do not wait


class Rank:
    """Handed to an exercise's `on_rank`, once a case, on every rank of the job.

    inputs: what this rank is handed of the case's tensors, on its device.
    student: the module of the student's definitions (with reference versions of earlier exercises when
        grading).
    group: made for this case and no other, so that what an earlier case left behind cannot match a call of
        this one.
    device: where its tensors are, the group's when none is given.
    """

    def __init__(
        self,
        case: Case,
        inputs: Inputs,
        student: ModuleType,
        group: dist.ProcessGroup,
        recorder: Recorder,
        device: torch.device | None = None,
    ):
        self.case = case
        self.params = case.params
        self.device = device or device_of(group)
        self.inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        self.student = student
        self.group = group
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.left_out: dict[str, str] = {}  # names that were not collected -> where they stand
        self._recorder = recorder
        self._answer = RankAnswer(self.rank, {}, {}, {}, {})

    @property
    def result(self) -> RankAnswer:
        """All that this rank has reported so far."""
        return self._answer

    def answer(self, name: str, tensor: torch.Tensor | None) -> None:
        """Send a tensor back. None (a missing gradient, say) is not sent, and the judge finds no answer.

        Raises TypeError for what is no tensor, or one whose class runs code of the student's when it is read.
        """
        if tensor is None:
            return
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"expected a tensor for {name}, found {type(tensor).__name__}")
        if hasattr(type(tensor), "full_tensor"):
            tensor = tensor.full_tensor()  # type: ignore[attr-defined]
        elif _reads_in_its_own_way(type(tensor)):
            raise TypeError(f"expected a tensor as torch makes it for {name}, found {type(tensor).__name__}")
        self._answer.tensors[name] = torch.Tensor.detach(tensor).to("cpu").contiguous().clone()

    def fact(self, name: str, value: JSON) -> None:
        """Send a number, a text, or lists and dicts of these."""
        self._answer.facts[name] = value

    @contextlib.contextmanager
    def recording(self, name: str) -> Iterator[float]:
        """Send back, under `name`, the collectives and messages this rank took part in inside the block; of
        several blocks of a name see `RankAnswer.collectives`.

        Yields the monotonic second that their times count from. Ranks that the case lists as `late` come to
        the block later than the others: who reads before it has come, or writes again before it has left,
        is seen.
        """
        if self.rank in self.params.get("late", ()):
            time.sleep(LATE)
        with traffic_of_block(self._recorder) as (calls, begin):
            recorded = self._answer.collectives
            if name in recorded:
                recorded[f"{name} (time {len(self._answer.earlier(name)) + 1})"] = recorded[name]
            recorded[name] = calls
            yield begin

    @contextlib.contextmanager
    def journal(self, name: str) -> Iterator[list[Act]]:
        """Send back, as the fact `name`, what this rank did inside the block; yields the list as it grows."""
        with Journal(self._recorder) as journal:
            yield journal.acts
        self.fact(name, msgspec.to_builtins(journal.acts))

    @contextlib.contextmanager
    def expect_error(self, name: str) -> Iterator[None]:
        """Send back, as the fact `name`, which error the block raised: {"raised": type or None, "message":
        text}.
        """
        fact: dict[str, JSON] = {"raised": None, "message": ""}
        try:
            yield
        except ForbiddenCall:
            raise
        except Exception as error:
            kinds = [k.__name__ for k in type(error).__mro__ if k not in (object, BaseException)]
            fact = {"raised": type(error).__name__, "kinds": kinds, "message": str(error)[:LONGEST_MESSAGE]}
        self._answer.facts[name] = fact

    @contextlib.contextmanager
    def attempt(self, property_name: str) -> Iterator[None]:
        """An error inside fails that property and the case goes on; in a case that does not show the property
        it fails the first of those that the case does show.

        Only for code that does not communicate, or fails on every rank alike: otherwise the other ranks
        would wait.
        """
        try:
            yield
        except ForbiddenCall:
            raise
        except Exception as error:
            self._answer.errors[property_name] = student_error(error, self.left_out)


def _reads_in_its_own_way(kind: type) -> bool:
    """Whether a class of the student's has code for what torch does with its tensors."""
    own = [base for base in kind.__mro__ if base.__module__ == MODULE_NAME]
    return any(way in vars(base) for base in own for way in _WAYS_IN)


def device_of(group: dist.ProcessGroup) -> torch.device:
    """Where the group's tensors are: with NCCL on this rank's GPU."""
    nccl = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


def student_error(error: BaseException, left_out: dict[str, str] | None = None) -> StudentError:
    """An exception in the student's terms: their line, and for a missing name where it was left."""
    message = str(error)[:LONGEST_MESSAGE]
    where = (left_out or {}).get(_missing_name(error))
    if where:
        message += f". It is set in {where} by code that is not a definition; {ONLY_DEFINITIONS}"
    return StudentError(type(error).__name__, message, _students_line(error.__traceback__))


def _missing_name(error: BaseException) -> str:
    """The name that was looked for among the student's, and is not there; empty for any other error."""
    match error:
        case NameError(name=str(name)):
            return name
        case AttributeError(name=str(name), obj=ModuleType(__name__=module)) if module == MODULE_NAME:
            return name
    return ""


def _students_line(trace: TracebackType | None) -> str:
    """The innermost line of the traceback that stands in a cell of the notebook."""
    frames = [
        f for f in traceback.extract_tb(trace) if not f.filename.endswith(".py") and f.filename[:1] != "<"
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""


def load_student(submission: Submission) -> ModuleType:
    """The student's definitions as a module whose functions give what is `settled`. StudentLoadError says
    which cell failed, and how.
    """
    try:
        module = submission.load()
    except Exception as error:
        raise StudentLoadError(student_error(error, submission.left_out)) from error
    module.__class__ = AtOnce
    return module


class StudentLoadError(Exception):
    """The student's cells raised while being defined."""

    def __init__(self, error: StudentError):
        super().__init__(str(error))
        self.error = error
