"""Grading under Apptainer: the same points and the same refusals as under bubblewrap.

A third of the attacks each day, as there; LABKIT_EVERYTHING=1 takes all.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import MEMORY, PLACES, SEED, ends_with_its_grader
from turn import part_of, today

from autograder.attacks import prying
from autograder.attacks.attack import Attack
from autograder.attacks.catalogue import ATTACKS
from autograder.grade.harness import Harness, grade_cells
from autograder.grade.reference import solved_cells
from autograder.sandbox.apptainer import Apptainer, _Image
from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.confined import Confined
from autograder.sandbox.contents import contents
from autograder.sandbox.sandbox import MIB, Limits, Sandbox
from labkit import doctor
from labkit.checks import registry
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.source.submission import Cell

pytestmark = [pytest.mark.apptainer, pytest.mark.timeout(120)]

PARTS = 6
TRIED = (
    *("network", "fork-bomb", "thread-bomb", "memory-bomb", "disk-bomb", "file-bomb", "output-bomb"),
    *("deaf", "daemon", "kill-everyone", "kill-parents"),
)
HIDDEN_BOMB = Attack(
    "hidden-bomb",
    "fills memory through files without a name",
    """
    import os
    held = []
    while True:
        held.append(open("/dev/shm/bomb", "wb"))
        os.unlink("/dev/shm/bomb")
        for _ in range(64):
            held[-1].write(bytes(2**20))
    """,
)
LOOK = (
    PLACES
    + """
import ctypes, socket
outside = ("/root/.bashrc", "/etc/passwd", "/etc/shadow", "/bin/sh", "/usr/bin/env", "/sys")
theory = os.path.exists("/course/labkit/theory/parameters.py")
print(os.environ.get("SECRET"), [p for p in outside if os.path.exists(p)], os.listdir("/course"), theory)
print([line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line], socket.gethostname())
libc = ctypes.CDLL(None)
print([libc.unshare(0x10000000), libc.mount(b"a", b"/tmp", b"tmpfs", 0, 0), libc.syscall(250, 0, -4, 0)])
"""
)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return find_sandbox(Limits(memory=MEMORY), kind="apptainer")


@pytest.fixture(scope="module")
def confining(sandbox: Sandbox) -> Iterator[Harness]:
    with Harness(sandbox, grace=3.0) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def elsewhere() -> set[int]:
    """Processes that other tests of this process keep running."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def left(elsewhere: set[int]) -> list[str]:
    """What these tests have started and is still running."""
    children = (c for c in psutil.Process().children(recursive=True) if c.pid not in elsewhere)
    return [child.name() for child in children if child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.days
def test_what_can_be_seen_and_done(sandbox: Sandbox, tmp_path: Path) -> None:
    assert isinstance(sandbox, Apptainer)
    image = _Image()
    command = sandbox.command(image, contents(tmp_path, ["theory"]), [sys.executable, "-c", LOOK])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=image.environment | {"SECRET": "x"}
    )
    image.cleanup()
    assert done.returncode == 0, done.stderr
    writable, seen, machine, calls = done.stdout.splitlines()
    assert eval(writable) == ["/dev", "/dev/mqueue", "/dev/shm", "/out", "/tmp"]
    assert seen == "None [] ['labkit'] False"
    assert machine == "['lo'] lab"
    assert eval(calls) == [-1, -1, -1], "no user namespace, no mount, no keys"


def test_it_is_taken_where_bubblewrap_cannot_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no user namespaces >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_sandbox().name == "apptainer"
    found = doctor.probe_sandbox()[0]
    assert found.says.startswith("bubblewrap is installed but refused: no user namespaces; Apptainer works")


def test_the_doctor_names_it_and_what_it_cannot_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_SANDBOX", "apptainer")
    found = doctor.probe_sandbox()[0]
    assert found.state == "note"
    assert found.says.startswith("Apptainer works")
    assert "still your user" in found.says


@pytest.mark.days(7)
def test_the_reference_earns_all_points_and_a_stub_none(sandbox: Sandbox, elsewhere: set[int]) -> None:
    """Points, and the kernel's count of what was sent."""
    exercises = registry.exercises("06")[:3]
    assert [g.report.points for g in grade_cells(exercises[:1], [], sandbox, SEED)] == [0]
    before = left(elsewhere)
    graded = grade_cells(exercises, solved_cells("06"), sandbox, SEED)
    assert [g.report.points for g in graded] == [g.report.max_points for g in graded]
    sent = [job for g in graded for job in g.jobs if job.ranks > 1]
    assert all(job.wire > job.num_bytes for job in sent)
    assert [flag for g in graded for flag in g.flags] == []
    assert left(elsewhere) == before


@pytest.mark.parametrize(
    "attack",
    part_of([*(a for a in ATTACKS if a.id in TRIED), HIDDEN_BOMB], PARTS, today()),
    ids=lambda attack: attack.id,
)
def test_attack(
    attack: Attack,
    confining: Harness,
    f_exercise: Exercise,
    two_ranks: list[Case],
    listener: socket.socket,
    elsewhere: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing earned, nothing read, nobody reached, nothing left but one sandbox."""
    monkeypatch.setenv("LABKIT_TEST_SECRET", prying.CANARY)
    source = attack.source.replace("PORT", str(listener.getsockname()[1]))
    graded = confining.grade(f_exercise, [Cell("cell 1", source)], SEED, two_ranks[:1])
    assert graded.report.verdict not in ("passed", "could_not_be_graded", "not_attempted")
    assert not graded.report.row("input-gradients").passed
    assert prying.CANARY not in json.dumps(graded.report.to_json())
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert len(left(elsewhere)) <= 4, "the keeper, Apptainer, its first process inside, the program"


@pytest.mark.days
def test_reading_is_refused(confining: Harness, f_exercise: Exercise, two_ranks: list[Case]) -> None:
    """Every attack that looks for secrets in files, processes and the environment."""
    os.environ["LABKIT_TEST_SECRET"] = prying.CANARY
    try:
        for attack in prying.ATTACKS:
            graded = confining.grade(f_exercise, [Cell("cell 1", attack.source)], SEED, two_ranks[:1])
            assert prying.CANARY not in json.dumps(graded.report.to_json()), attack.id
    finally:
        del os.environ["LABKIT_TEST_SECRET"]


def test_an_honest_answer_after_all_that(
    confining: Harness, f_exercise: Exercise, two_ranks: list[Case]
) -> None:
    graded = confining.grade(f_exercise, solved_cells("06"), SEED, two_ranks)
    assert graded.report.row("input-gradients").passed
    assert graded.flags == []


@pytest.mark.days
def test_shared_memory_is_ended_when_it_oversteps(
    f_exercise: Exercise, two_ranks: list[Case], sandbox: Sandbox
) -> None:
    """The kernel has no limit there: it is looked at, and what files without a name hold counts too."""
    with Harness(sandbox, grace=3.0) as harness:
        harness.grade(f_exercise, [Cell("cell 1", HIDDEN_BOMB.source)], SEED, two_ranks[:1])
        outcome = harness.outcomes[-1]
    assert outcome.ended == "memory"
    assert f"more than {sandbox.limits.shared_memory // MIB} MiB of shared memory" in outcome.detail


@pytest.mark.days
def test_closing_leaves_no_process(sandbox: Sandbox, tmp_path: Path, elsewhere: set[int]) -> None:
    before = left(elsewhere)
    with Confined(sandbox, tmp_path) as confined:
        assert confined.usage().memory > 0
        assert confined.traffic() is not None
        assert list(confined.out.iterdir()) == []
    assert left(elsewhere) == before


@pytest.mark.days
def test_a_killed_grader_leaves_no_process(tmp_path: Path) -> None:
    assert ends_with_its_grader(tmp_path, "apptainer")
