"""What is inside a sandbox, what can be written there, and that nothing survives it."""

from __future__ import annotations

import contextlib
import os
import platform
import py_compile
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from conftest import F_ID, PLACES, SEED, ends_with_its_grader, solution

import autograder.sandbox.bubblewrap
import autograder.sandbox.sandbox
import labkit.cgroups
from autograder.grade.harness import MOST_LATE, Harness
from autograder.grade.reference import all_cases, solved_cells
from autograder.sandbox.bubblewrap import Bubblewrap, _file, _pipe
from autograder.sandbox.choice import CHOICE, find_sandbox
from autograder.sandbox.confined import Confined
from autograder.sandbox.contents import Emptied, Shown, contents
from autograder.sandbox.sandbox import COURSE, CouldNotStart, Limits, NoSandbox
from autograder.sandbox.unconfined import Unconfined
from autograder.sandbox.within.calls import SANDBOX_RULES, filter_of
from labkit import doctor
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.source.submission import Cell

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(120)]

LOOK = (
    PLACES
    + """
files = [os.path.exists(p) for p in ("/root/.bashrc", "/etc/passwd")]
print(os.environ.get("SECRET"), *files, os.getuid())
theory = os.path.exists("/course/labkit/theory/parameters.py")
print(os.listdir("/course"), theory)
programs = [os.path.exists(p) for p in ("/bin/sh", "/usr/bin/env")]
print(open("/proc/net/dev").read().count(":"), *programs)
import ctypes
libc = ctypes.CDLL(None)
print(libc.memfd_create(b"m", 0), libc.shmget(0, 4096, 0o1600), libc.syscall(0x40000000 + 20) if X32 else -1)
"""
)


def look(tmp_path: Path, hide: list[str]) -> list[str]:
    """Run LOOK confined; the lines it prints."""
    sandbox = find_sandbox(kind="bubblewrap")
    assert isinstance(sandbox, Bubblewrap)
    with (
        _pipe() as (_, writing),
        _file(
            filter_of(
                SANDBOX_RULES,
            )
        ) as calls,
    ):
        pass_fds = writing.fileno(), calls.fileno()
        command = [sandbox.bwrap, *sandbox.options(tmp_path, hide, *pass_fds), "--", sys.executable, "-c"]
        done = subprocess.run(
            [*command, f"X32 = {platform.machine() == 'x86_64'}\n{LOOK}"],
            pass_fds=pass_fds,
            capture_output=True,
            text=True,
            env={"SECRET": "x"},
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_can_be_written_and_seen(tmp_path: Path) -> None:
    writable, secrets, course, machine, uncounted = look(tmp_path, [])
    assert eval(writable) == ["/dev/shm", "/out", "/tmp"]
    assert secrets == "None False False 65534"
    assert course.startswith("['labkit'] True")
    assert machine == "1 False False", "one interface (lo), no shell, no programs"
    assert uncounted == "-1 -1 -1", "no memory that nobody counts, nor other numbers for the same calls"


@pytest.mark.days
def test_an_interpreter_that_was_started_by_a_roundabout_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, f_exercise: Exercise, two_ranks: list[Case]
) -> None:
    """As `../.venv/bin/python` from a folder that is not there inside."""
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/{os.path.relpath(sys.executable, tmp_path)}")
    with Harness(find_sandbox()) as harness:
        graded = harness.grade(f_exercise, solved_cells("06"), SEED, two_ranks)
    assert graded.report.verdict != "could_not_be_graded", graded.report


def test_theory_can_be_hidden(tmp_path: Path) -> None:
    assert look(tmp_path, ["theory"])[2].startswith("['labkit'] False")


READS_COMPILED = """
import glob, marshal

class CopyToTensorParallel:
    @staticmethod
    def apply(x, group):
        found = {}
        for path in glob.glob("/course/labkit/__pycache__/tensor_parallel.*.pyc"):
            exec(marshal.loads(open(path, "rb").read()[16:]), found)
        return found["_CopyToRanks"].apply(x, group)
"""


@pytest.mark.days
def test_what_is_hidden_cannot_be_read_as_python_compiled_it(
    f_exercise: Exercise, two_ranks: list[Case]
) -> None:
    """The library's own f is beside lesson 06 on every machine that has imported it once."""
    (name,) = f_exercise.hides
    compiled = Path(py_compile.compile(str(Path(labkit.__file__).parent / name), doraise=True))
    assert b"_CopyToRanks" in compiled.read_bytes()
    with Harness(find_sandbox(), f_exercise.hides) as harness:
        graded = harness.grade(f_exercise, [Cell("cell 1", READS_COMPILED, F_ID)], SEED, two_ranks)
    assert graded.report.points == 0, graded.report


def test_what_is_hidden_is_hidden_where_it_is_installed_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From a wheel, labkit stands among the packages that are shown."""
    package = Path(labkit.__file__).parent
    monkeypatch.setattr(sys, "prefix", str(package.parent))
    pieces = list(contents(tmp_path, ["tensor_parallel.py", "theory"]))
    empty = str(package / "py.typed")
    for seen in (str(package), f"{COURSE}/labkit"):
        assert Shown(empty, f"{seen}/tensor_parallel.py") in pieces
        assert Emptied(f"{seen}/__pycache__") in pieces
        assert Emptied(f"{seen}/theory") in pieces
    assert Emptied(str(package.parent / "autograder")) in pieces


def test_no_sandbox_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoSandbox, match="apt install bubblewrap") as refusal:
        find_sandbox()
    assert "apptainer-suid" in str(refusal.value)
    assert "--unsafe-no-sandbox" in str(refusal.value)


def test_bubblewrap_that_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no user namespaces >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    autograder.sandbox.bubblewrap._try_out.cache_clear()
    with pytest.raises(NoSandbox, match="no user namespaces") as refusal:
        find_sandbox()
    autograder.sandbox.bubblewrap._try_out.cache_clear()
    assert "- apptainer: it is not here" in str(refusal.value)


def test_a_start_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the mount of a file system does whose server is gone."""
    hangs = tmp_path / "bwrap"
    hangs.write_text("#!/bin/sh\nexec sleep 1000\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(autograder.sandbox.bubblewrap, "SECONDS", 0.5)
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with pytest.raises(CouldNotStart, match=r"started nothing within 0\.5 s"):
        Bubblewrap(bwrap=str(hangs), limits=Limits()).start(tmp_path, ())
    assert {p.pid for p in psutil.Process().children(recursive=True)} == before


def test_a_kind_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever operates the host; another kind is not taken in its place."""
    monkeypatch.setenv(CHOICE, "bubblewrap")
    assert find_sandbox().name == "bubblewrap"
    monkeypatch.setenv(CHOICE, "apptainer")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoSandbox, match="apptainer was asked for") as refusal:
        find_sandbox()
    assert "bubblewrap" not in str(refusal.value)
    monkeypatch.setenv(CHOICE, "docker")
    with pytest.raises(NoSandbox, match="expected bubblewrap or apptainer, found 'docker'"):
        find_sandbox()


def test_the_doctor_says_what_stands_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for asked_for, told in (("", "no bubblewrap; no Apptainer"), ("apptainer", "no Apptainer")):
        monkeypatch.setenv(CHOICE, asked_for)
        found = doctor.probe_sandbox()[0]
        assert found.state == "missing"
        assert found.says.startswith(f"{told}: submissions cannot be graded here")
    monkeypatch.setenv(CHOICE, "docker")
    assert "bubblewrap or apptainer expected" in doctor.probe_sandbox()[0].says


@pytest.mark.days
def test_the_doctor_says_what_the_grader_itself_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a bubblewrap that confines, and cannot do without capabilities."""
    picky = tmp_path / "bwrap"
    refuses = 'case "$*" in *--cap-drop*) echo nothing may be dropped >&2; exit 1;; esac'
    picky.write_text(f'#!/bin/sh\n{refuses}\nexec {shutil.which("bwrap")} "$@"\n')
    picky.chmod(0o755)
    monkeypatch.setenv(CHOICE, "bubblewrap")
    assert doctor.probe_sandbox()[0].says == "bubblewrap works: submissions can be graded here"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = doctor.probe_sandbox()[0]
    assert found.state == "missing"
    assert found.says.startswith("bubblewrap confines, but the grader cannot use it: ")
    assert "nothing may be dropped" in found.says


def test_without_the_grader_the_doctor_says_what_it_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a student's bundle."""
    monkeypatch.setitem(sys.modules, "autograder", None)
    found = doctor.probe_sandbox()[0]
    assert found.state == "ok"
    assert "can be graded" not in found.says
    assert "the grader is not installed here" in found.says


@pytest.mark.days
def test_closing_leaves_no_process(tmp_path: Path) -> None:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with Confined(find_sandbox(), tmp_path) as confined:
        assert confined.usage().memory > 0
        assert confined.traffic() is not None
    assert {p.pid for p in psutil.Process().children(recursive=True)} == before


@pytest.mark.days
def test_a_killed_grader_leaves_no_process(tmp_path: Path) -> None:
    """The kernel ends the sandbox when the process that started it is gone, even by SIGKILL."""
    assert ends_with_its_grader(tmp_path, "bubblewrap")


@pytest.mark.days
def test_without_a_sandbox_the_same_points(f_exercise: Exercise, two_ranks: list[Case]) -> None:
    """--unsafe-no-sandbox grades alike, and leaves nothing either."""
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with Harness(Unconfined()) as harness:
        graded = harness.grade(f_exercise, [Cell("cell 1", solution(F_ID))], SEED, two_ranks)
    assert graded.report.row("input-gradients").passed
    assert graded.report.row("communication").passed
    assert any("rest on what ranks themselves recorded" in note for note in graded.report.notes)
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before


@pytest.mark.days
def test_ranks_are_graded_on_the_cpu_where_there_are_gpus(
    f_exercise: Exercise, two_ranks: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's list of GPUs is seen in a sandbox, and the GPUs are not: no rank may take one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with Harness(Unconfined()) as harness:
        graded = harness.grade(f_exercise, [Cell("cell 1", solution(F_ID))], SEED, two_ranks)
    assert graded.report.row("input-gradients").passed, graded.report


@pytest.mark.days
def test_without_a_sandbox_no_folder_of_the_graders_is_in_the_way(
    f_exercise: Exercise, two_ranks: list[Case]
) -> None:
    """A name is as much a module there as in a sandbox: `batch` is none."""
    source = f"from batch import *\n{solution(F_ID)}"
    with Harness(Unconfined()) as harness:
        graded = harness.grade(f_exercise, [Cell("cell 1", source)], SEED, two_ranks)
    assert "No module named 'batch'" in graded.report.stops[0].text, graded.report


def _end_first_agent(ended: list[int]) -> None:
    """Kill the process between a sandbox's program and its ranks, once, as a host short of memory might."""
    until = time.monotonic() + 60
    while not ended and time.monotonic() < until:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                above = [parent.name() for parent in process.parents()[:3]]
                if process.name() != "bwrap" and above[1:] == ["bwrap", "bwrap"] and process.children():
                    process.kill()
                    ended.append(process.pid)
                    break
        time.sleep(0.002)


@pytest.mark.days
def test_a_job_that_the_host_ended_is_run_again(f_exercise: Exercise, two_ranks: list[Case]) -> None:
    ended: list[int] = []
    killer = threading.Thread(target=_end_first_agent, args=(ended,))
    killer.start()
    with Harness(find_sandbox()) as harness:
        graded = harness.grade(f_exercise, solved_cells("06"), SEED, two_ranks)
    killer.join()
    assert ended
    assert graded.report.verdict != "error", graded.report
    assert graded.report.row("input-gradients").passed


@pytest.mark.days
def test_a_host_that_gives_ranks_no_networks_is_no_fault_of_the_students(f_exercise: Exercise) -> None:
    """Too few files may be open for four networks and for what they are made with."""
    cases = [c for c in all_cases(f_exercise, SEED) if c.ranks == 4][:1]
    with Harness(find_sandbox(Limits(open_files=9), kind="bubblewrap")) as harness:
        graded = harness.grade(f_exercise, solved_cells("06"), SEED, cases)
        assert graded.report.verdict == "could_not_be_graded", graded.report
        confined = harness._started()
        assert "the ranks have no networks: [Errno 24] Too many open files" in confined.last_words()


def test_a_pipe_is_closed_once(tmp_path: Path) -> None:
    """Its number may be another thread's file a moment later: the gradebook's, for example."""
    with _pipe() as (_, writing):
        number = writing.fileno()
        writing.close()
        other = (tmp_path / "other").open("w")
    assert other.fileno() == number
    other.write("still open")
    other.close()


@pytest.mark.days(5)
def test_an_exercise_that_hangs_in_every_case_is_given_up(f_exercise: Exercise) -> None:
    """Each job that hangs takes its whole time, four times as long on a busy host."""
    source = f"import time\n{solution(F_ID)}".replace("return x", "time.sleep(1000); return x", 1)
    cases = [replace(case, timeout=1.0) for case in all_cases(f_exercise, SEED)]
    with Harness(find_sandbox()) as harness:
        graded = harness.grade(f_exercise, [Cell("cell 1", source)], SEED, cases)
        assert len(harness.outcomes) == MOST_LATE
    assert (graded.report.verdict, graded.report.points) == ("timeout", 0)
    assert "1 s" in graded.report.stops[0].text or "in time" in graded.report.stops[0].text
