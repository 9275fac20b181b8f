"""Every attack: no points gained, nothing read, nothing left, a person told where there is something to
see. A quarter is tried, another one each day; `make thorough` tries all.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from conftest import F_ID, SEED, solution
from turn import part_of, today

from autograder.attacks.attack import FOUND, Attack
from autograder.attacks.catalogue import ATTACKS
from autograder.attacks.prying import CANARY
from autograder.grade.evidence import Baseline
from autograder.grade.feedback import LONGEST_BESIDE_OURS, LONGEST_TOGETHER, SHORTEST
from autograder.grade.harness import Graded, Harness
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.source.submission import Cell

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

TODAY = part_of(ATTACKS, 16, today())
REFUSED = "it is not looked up here"  # by what stands in for getattr
FORGERIES = part_of([attack for attack in ATTACKS if attack.id.startswith("forge-")], 3, today())


@pytest.fixture(scope="module")
def baseline(harness: Harness, f_exercise: Exercise, two_ranks: list[Case]) -> Baseline:
    """What the reference sends in the attacked cases."""
    graded = harness.grade(f_exercise, [Cell("cell 1", solution(F_ID))], SEED, two_ranks)
    assert graded.report.row("communication").passed
    return Baseline.of(graded.jobs)


@pytest.fixture(scope="module")
def idle(harness: Harness, f_exercise: Exercise, two_ranks: list[Case]) -> Graded:
    """What sending nothing, without any trick, earns."""
    return harness.grade(f_exercise, [Cell("cell 1", Attack("idle", "").source)], SEED, two_ranks)


@pytest.fixture(scope="module")
def others() -> set[int]:
    """Processes of tests before this file's, which nobody here has started."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.fixture(scope="module", autouse=True)
def canary() -> Iterator[None]:
    """A secret in the grader's own environment."""
    os.environ["LABKIT_TEST_SECRET"] = CANARY
    yield
    del os.environ["LABKIT_TEST_SECRET"]


def test_there_are_many() -> None:
    assert len(ATTACKS) >= 200
    assert len({attack.id for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize("attack", TODAY, ids=lambda attack: attack.id)
def test_attack(
    others: set[int],
    attack: Attack,
    harness: Harness,
    f_exercise: Exercise,
    two_ranks: list[Case],
    baseline: Baseline,
    idle: Graded,
    listener: socket.socket,
) -> None:
    """No more points than doing nothing, no secret in the report, no process or file left outside."""
    source = attack.source.replace("PORT", str(listener.getsockname()[1]))
    cases = two_ranks if attack.both else two_ranks[1:] if attack.hidden_only else two_ranks[:1]
    graded = harness.grade(f_exercise, [Cell("cell 1", source)], SEED, cases)
    harness.cross_check(graded, f_exercise, SEED, baseline)
    lost = {row.name for row in graded.report.rows if not row.passed}
    assert "communication" in lost or attack.communicates
    if not attack.right_numbers:
        assert lost >= {
            row.name for row in idle.report.rows if not row.passed and row.name != "communication"
        }
        assert graded.report.verdict not in ("passed", "could_not_be_graded", "not_attempted")
    if attack.flagged:
        assert graded.flags, "a person must be told"
        assert any(flag.cell == "cell 1" and flag.line for flag in graded.flags)
    _ended_for_its_own_reason(attack, graded)
    told = json.dumps(graded.report.to_json())
    assert CANARY not in told
    assert FOUND not in told.replace(source, "")
    assert len(told) < 60_000
    if attack.hidden_only:
        _little_is_told(graded)
    _nothing_left(harness, listener, others)


@pytest.mark.parametrize("attack", FORGERIES, ids=lambda attack: attack.id)
def test_a_forged_record_earns_nothing(
    attack: Attack, harness: Harness, f_exercise: Exercise, two_ranks: list[Case], baseline: Baseline
) -> None:
    """The kernel counted what was really sent: points for communicating are held back, and a person told."""
    graded = harness.grade(f_exercise, [Cell("cell 1", attack.source)], SEED, two_ranks)
    claimed = graded.report.row("communication").passed
    harness.cross_check(graded, f_exercise, SEED, baseline)
    assert not graded.report.row("communication").passed
    if claimed:
        assert "communication" in graded.held
        assert any("the network carried" in flag.why for flag in graded.flags)


def test_who_asks_the_checks_for_the_answer_waits_for_all_points(harness: Harness) -> None:
    """Of an exercise whose points are numbers alone, which rest on no record."""
    route = registry.exercise("12.route")
    source = """
from labkit.checks.lesson_12.reference import routed
def route(tokens, router, k, bias=None):
    return tuple(routed(tokens, router, k, bias))
"""
    graded = harness.grade(route, [Cell("cell 1", source)], SEED, route.cases(SEED)[:2])
    assert graded.report.points
    harness.cross_check(graded, route, SEED, None)
    assert graded.report.points == 0
    assert graded.held


@pytest.mark.parametrize("id", ["locks-its-folder", "no-room-of-its-own"])
def test_the_machine_is_not_blamed(
    id: str, harness: Harness, f_exercise: Exercise, two_ranks: list[Case]
) -> None:
    """What a rank does to its own files is told as what it is."""
    attack = next(attack for attack in ATTACKS if attack.id == id)
    graded = harness.grade(f_exercise, [Cell("cell 1", attack.source)], SEED, two_ranks[:1])
    assert graded.report.verdict == "error"
    assert "locks what its own process writes to" in graded.report.stops[0].text


def test_an_honest_answer_after_all_that(
    harness: Harness, f_exercise: Exercise, two_ranks: list[Case], baseline: Baseline
) -> None:
    """The next submission is graded as if nothing had happened, and not flagged."""
    graded = harness.grade(f_exercise, [Cell("cell 1", solution(F_ID))], SEED, two_ranks)
    harness.cross_check(graded, f_exercise, SEED, baseline)
    assert graded.report.row("input-gradients").passed
    assert graded.report.row("communication").passed
    assert graded.flags == []


def _ended_for_its_own_reason(attack: Attack, graded: Graded) -> None:
    """No attack fails because it is written for a labkit of another day, or names what it does not have."""
    for stop in graded.report.stops:
        lost = re.search(r"(Attribute|Name|UnboundLocal|Import|ModuleNotFound)Error: (.*)", stop.text)
        told = lost.group(2) if lost else REFUSED
        assert REFUSED in told or (attack.lacks and attack.lacks in told), stop.text


def _little_is_told(graded: Graded) -> None:
    """Of an unseen case: few characters in all, and nothing packed, encoded or spaced out."""
    texts = {row.seen for row in graded.report.rows} | {stop.text for stop in graded.report.stops}
    assert max(map(len, texts)) <= LONGEST_BESIDE_OURS + 5
    assert sum(map(len, texts)) <= LONGEST_TOGETHER + SHORTEST * len(texts)
    for text in texts:
        assert text.replace("\n", " ").isprintable()
        assert not re.search(r"\S{64}", text), text
        assert not re.search(r"(\S{1,2}\s+){30}", text), text


def runs_one_of(programs: Sequence[str], process: psutil.Process) -> bool:
    """Whether one of these files is on its command line."""
    return any(Path(word).name in programs for word in process.cmdline())


def _nothing_left(harness: Harness, listener: socket.socket, others: set[int]) -> None:
    with pytest.raises(BlockingIOError):
        listener.accept()
    confined = harness._confined
    running = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    inside = [process for process in running if process.pid not in others]
    ours = ("bwrap", "starter-suid", "appinit")
    programs = ("inside.py", "keeper.py")
    strangers = [p.name() for p in inside if p.name() not in ours and not runs_one_of(programs, p)]
    assert strangers == []
    assert len(inside) <= (4 if confined and confined.alive else 0)
    kept = [path.stat().st_size for path in Path(harness._folder.name).rglob("*")]
    assert sum(kept) < 2**20  # the one place outside that a sandbox is given, and it may only read there
    assert not Path("/out").exists()
