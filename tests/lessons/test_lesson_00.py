"""Lesson 00: other right answers earn everything too, and the deadlocks are told as they are taught."""

from __future__ import annotations

import ast
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

import labkit
from autograder.grade.reference import all_cases, lesson_source, reference_cells
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.judge import judge_exercise
from labkit.checks.practice import VISIBLE_SEED, check_cells, run_on_host
from labkit.checks.report import Report
from labkit.checks.source.notebook import collect_exercise
from labkit.checks.source.submission import Cell
from labkit.launch import DeadlockError, JobCancelled

RING = "00.ring-all-reduce"


def judged(exercise_id: str, change: Callable[[str], str], cases: Sequence[Case]) -> Report:
    """The report on the lesson with the exercise's cell changed."""
    exercise = registry.exercise(exercise_id)
    cells = [
        replace(cell, source=change(cell.source)) if cell.exercise == exercise_id else cell
        for cell in reference_cells("00")
    ]
    submission = collect_exercise(cells, exercise)
    return judge_exercise(exercise, cases, submission, submission, run_on_host)


def ring_with(*body: str, loop_only: bool = True) -> Callable[[str], str]:
    """The reference ring with other lines in place of its exchange, or a whole other ring."""

    def change(source: str) -> str:
        head, _, rest = source.partition("        send = dist.P2POp")
        _, mark, tail = rest.partition("        if adding:\n")
        if not loop_only:
            head, _, _ = source.partition("    ### BEGIN SOLUTION")
            mark, tail = "", ""
        return head + "".join(f"{line}\n" for line in body) + mark + tail

    return change


RIGHT_RINGS = {
    "isend, recv, wait": ring_with(
        "        work = dist.isend(outgoing, group_dst=right, group=group)",
        "        dist.recv(incoming, group_src=left, group=group)",
        "        work.wait()",
    ),
    "irecv before send": ring_with(
        "        work = dist.irecv(incoming, group_src=left, group=group)",
        "        dist.send(outgoing, group_dst=right, group=group)",
        "        work.wait()",
    ),
    "odd ranks receive first": ring_with(
        "        if rank % 2:",
        "            arrived = torch.empty_like(incoming)",
        "            dist.recv(arrived, group_src=left, group=group)",
        "            dist.send(outgoing, group_dst=right, group=group)",
        "            incoming.copy_(arrived)",
        "        else:",
        "            dist.send(outgoing, group_dst=right, group=group)",
        "            dist.recv(incoming, group_src=left, group=group)",
    ),
    "to the left, the remainder in the last part, global ranks": ring_with(
        "    n, me = dist.get_world_size(group), dist.get_rank(group)",
        "    if n == 1:",
        "        return",
        "    to, source = (dist.get_global_rank(group, (me + k) % n) for k in (-1, 1))",
        "    whole = x.reshape(-1).clone()",
        "    size = whole.numel() // n",
        "    cut = [whole[i * size : (i + 1) * size if i < n - 1 else None] for i in range(n)]",
        "    for step in range(2 * n - 2):",
        "        mine, theirs = cut[(me + step) % n], cut[(me + step + 1) % n]",
        "        arriving = torch.empty_like(theirs)",
        "        work = dist.isend(mine, dst=to, group=group)",
        "        dist.recv(arriving, src=source, group=group)",
        "        work.wait()",
        "        theirs.copy_(theirs + arriving if step < n - 1 else arriving)",
        "    x.copy_(whole.reshape(x.shape))",
        loop_only=False,
    ),
}


@pytest.mark.days
@pytest.mark.parametrize("name", RIGHT_RINGS)
@pytest.mark.timeout(60)
def test_other_right_rings_earn_every_point(name: str) -> None:
    """A check is about the property, not about the reference's way to it."""
    report = judged(RING, RIGHT_RINGS[name], registry.exercise(RING).cases(VISIBLE_SEED))
    assert report.passed, report


def test_expected_values_do_not_travel() -> None:
    """What the ranks are sent holds no expected value, and the grader's own case does."""
    from labkit.checks.files import RunRequest
    from labkit.checks.source.submission import Submission

    cases = [c for c in all_cases(registry.exercise("00.bus-bandwidth"), seed=1) if "rows" in c.params]
    assert all(case.expected["values"] for case in cases)
    request = RunRequest("00.bus-bandwidth", cases, Submission([]), Submission([]), 1, 1.0)
    assert all(case["expected"] == {} for case in request.to_json()["cases"])


def broken_programs() -> dict[str, Callable[..., object]]:
    """The functions of the lesson's cells that hold a broken program, by name."""
    found: dict[str, Callable[..., object]] = {}
    setup = "import torch\nimport torch.distributed as dist\n"
    for cell in lesson_source("00").cells:
        if cell.kind == "code" and "def broken_" in cell.source:
            functions = [n for n in ast.parse(cell.source).body if isinstance(n, ast.FunctionDef)]
            exec(setup + "\n".join(map(ast.unparse, functions)), found)
    return found


@pytest.mark.parametrize(
    ("ranks", "runner", "program", "report"),
    [
        (4, None, "broken_pass_right", "waits in send to rank 1"),
        (3, "with_uneven_data", "broken_mean_loss", "rank 2 has finished"),
        (4, "on_grid", "broken_row_and_column_sums", "waits in all_reduce on ranks 1 and 3"),
    ],
)
@pytest.mark.timeout(60)
def test_broken_program_deadlocks_and_the_report_says_who_waits(
    ranks: int, runner: str | None, program: str, report: str
) -> None:
    """What the lesson's text says about the three reports stands in them."""
    import torch

    programs = broken_programs()
    call = (programs[program], torch.arange(3.0)) if runner is None else (programs[runner], programs[program])
    with pytest.raises(DeadlockError) as caught:
        labkit_launch(*call, ranks=ranks)
    assert report in str(caught.value)


def labkit_launch(function: Callable[..., object], *args: object, ranks: int) -> None:
    labkit.launch(function, *args, ranks=ranks, backend="gloo", timeout=20)


@pytest.mark.timeout(60)
def test_an_interrupt_ends_the_check_and_not_one_of_its_jobs() -> None:
    """Whenever it comes: the cases of 00.ring-all-reduce need jobs of several world sizes."""
    never = Cell("cell 1", "def ring_all_reduce(*given):\n    while True:\n        pass\n")
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises((KeyboardInterrupt, JobCancelled)):
        check_cells(registry.exercise(RING), [never])
