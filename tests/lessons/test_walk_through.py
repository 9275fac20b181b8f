"""The exercise that solutions/README.md walks through works as it stands there, on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import labkit
from labkit.checks.exercise import Exercise
from labkit.checks.files import RunRequest
from labkit.checks.judge import judge_exercise
from labkit.checks.report import Report
from labkit.checks.source.submission import Cell, collect
from labkit.launch.api import start
from labkit.launch.handover.request import Wanted

README = Path(labkit.__file__).parents[1] / "solutions" / "README.md"
IMPORTS = """
from __future__ import annotations
import torch
from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every, own_entry
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of, on_each, same, stays_in_group
from labkit.checks.shared.places import enter_group, place_of
"""
SHIFT = """import torch
import torch.distributed as dist
def shift(x, group):
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    received = torch.empty_like(x)
    sent = dist.isend(x, group=group, group_dst=(rank + 1) % size)
    dist.recv(received, group=group, group_src=(rank - 1) % size)
    sent.wait()
    return received
"""
GATHERED = """import torch
import torch.distributed as dist
def shift(x, group):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everything, x, group=group)
    return everything[dist.get_rank(group) - 1]
"""


@pytest.fixture(scope="module")
def source() -> str:
    """The Python of the walk, as lesson 97."""
    text = README.read_text(encoding="utf-8").split("```python\n   def _cases", 1)[1].split("```", 1)[0]
    lines = ("   def _cases" + text).splitlines()
    code = "\n".join(line.removeprefix("   ") for line in lines).replace("NN.shift", "97.shift")
    return f"{IMPORTS}\n{code}\nEXERCISES = [EXERCISE]\n"


def judged(source: str, solution: str) -> Report:
    """The report of a solution to the walk's exercise."""

    def on_rank(directory: str, source: str) -> None:
        import sys
        from importlib.machinery import ModuleSpec
        from types import ModuleType

        from labkit.checks.execute import run_rank

        module = ModuleType("labkit.checks.lesson_97")
        module.__spec__ = ModuleSpec(module.__name__, None)
        exec(source, vars(module))
        sys.modules[module.__name__] = module
        run_rank(directory)

    def run_job(directory: Path, request: RunRequest) -> None:
        wanted = Wanted(request.ranks, "gloo", 30.0)
        start(on_rank, (str(directory), source), wanted=wanted).wait()

    names: dict[str, Exercise] = {}
    exec(source, names)
    exercise = names["EXERCISE"]
    submission = collect([Cell("cell 1", solution)], exercise.id, exercise.names)
    return judge_exercise(exercise, exercise.cases(1), submission, submission, run_job)


def test_the_walks_exercise_is_passed_by_what_it_asks_for(source: str) -> None:
    report = judged(source, SHIFT)
    assert report.passed, report


def test_the_walks_exercise_loses_what_a_mistake_breaks(source: str) -> None:
    report = judged(source, GATHERED)
    assert [row.name for row in report.rows if not row.passed] == ["messages"], report
