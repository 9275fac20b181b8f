"""What a job may leave behind it, and what an engine has to put up with."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
import rank_functions as on_ranks
from launch_helpers import jobs_of
from waiting import soon, wait_for_output

import labkit
from labkit import processes
from labkit.launch import client, here, torchrun
from labkit.launch.failure.errors import InfrastructureError, JobCancelled, JobTimeout, RankError
from labkit.launch.handover import directory
from labkit.launch.torchrun import run_script

pytestmark = pytest.mark.timeout(60)


def _no_jobs() -> bool:
    return not jobs_of(client.engine().directory)


def test_a_job_whose_handle_is_dropped_runs_on_and_leaves_nothing(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def later() -> None:
        time.sleep(0.5)
        done.touch()

    labkit.launch(later, ranks=2, wait=False)
    gc.collect()
    assert soon(done.exists)
    assert soon(_no_jobs)


def test_a_job_that_has_ended_before_its_handle_is_dropped_leaves_nothing() -> None:
    job = labkit.launch(on_ranks.hello, ranks=1, wait=False)
    agents = [pid for pid in processes.marked(str(client.engine().directory)) if pid != client.engine().pid]
    assert soon(lambda: not any(processes.is_alive(pid) for pid in agents))
    del job
    gc.collect()
    assert soon(_no_jobs)


@pytest.mark.days
def test_a_launch_on_a_rank_leaves_nothing() -> None:
    def launches() -> tuple[list[int], Path]:
        import rank_functions

        import labkit
        from labkit.launch import client

        return labkit.launch(rank_functions.hello, ranks=2).results, client.engine().directory

    ranks, directory = labkit.launch(launches, ranks=1).results[0]
    assert ranks == [0, 1]
    assert directory != client.engine().directory
    assert soon(lambda: not directory.exists(), within=1)


@pytest.mark.parametrize("kind", ["check", "grading", "sandbox"])
def test_what_a_killed_check_or_grader_left_goes_after_a_day(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, in_use = (tmp_path / f"labkit-{kind}-{name}" for name in ("left", "in_use"))
    for folder in (left, in_use):
        folder.mkdir()
        (folder / "inputs.bin").write_bytes(b"0" * 100)
    two_days_ago = time.time() - 2 * 86400
    os.utime(left, (two_days_ago, two_days_ago))
    directory.remove_stale()
    assert sorted(tmp_path.iterdir()) == [in_use]


@pytest.mark.days
def test_torchrun_leaves_no_directory_of_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    printed: list[str] = []
    run_script(script, 1, 60, printed.append)
    assert "ran" in "".join(printed)
    assert "--log" not in printed[0]
    assert not list(tmp_path.glob("torchelastic_*"))


@pytest.mark.days
def test_a_torchrun_that_fails_ends_nothing_but_its_own(tmp_path: Path) -> None:
    """What other jobs of this notebook start meanwhile carries the same engine's mark."""

    def starts_others() -> int:
        import subprocess

        return sum(subprocess.run(["sleep", "0.2"]).returncode for _ in range(40))

    script = tmp_path / "script.py"
    script.write_text("import subprocess, sys\nsubprocess.Popen(['sleep', '600'])\nsys.exit(3)\n")
    job = labkit.launch(starts_others, ranks=2, wait=False)
    with pytest.raises(RankError, match="torchrun ended with exit code 1"):
        run_script(script, 1, 60, print)
    assert not [pid for pid in processes.marked(str(client.engine().directory)) if _sleeps(pid, "600")]
    assert job.wait().results == [0, 0]


def test_a_second_interrupt_of_torchrun_leaves_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while what ignores SIGTERM is given the time to end."""
    deaf = ["sh", "-c", "trap '' TERM; sleep 600 & echo ready; wait"]
    monkeypatch.setattr(torchrun, "command", lambda script, ranks: deaf)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(text: str) -> None:
        if "ready" in text and "sh" not in text:
            for seconds in (0.1, 0.4):
                threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT)).start()

    with pytest.raises(JobCancelled, match="torchrun was interrupted"):
        run_script(tmp_path / "script.py", 1, 30, interrupt)
    assert not [pid for pid in processes.marked(str(client.engine().directory)) if _sleeps(pid, "600")]


def test_a_program_whose_name_is_cut_in_a_character_is_ended_too(tmp_path: Path) -> None:
    """Linux keeps fifteen bytes of the name: here with half of the last letter."""
    program = tmp_path / "fourteen-bytesä"
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o700)

    def starts() -> None:
        import subprocess
        import time

        subprocess.Popen([program], start_new_session=True)
        print("ready", flush=True)
        time.sleep(60)

    job = labkit.launch(starts, ranks=1, wait=False)
    wait_for_output(job)
    engine = client.engine()
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="ended from outside"):
        job.wait()
    assert processes.marked(str(engine.directory)) == []


def _sleeps(pid: int, seconds: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]
    except OSError:
        return False


def test_a_script_that_closes_its_output_is_ended_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = ["sh", "-c", "exec >&- 2>&-; exec sleep 100"]
    monkeypatch.setattr(torchrun, "command", lambda script, ranks: closed)
    with pytest.raises(JobTimeout, match=r"did not finish within 0\.5 s"):
        run_script(tmp_path / "script.py", 1, 0.5, print)


def test_a_character_of_a_script_that_comes_in_two_pieces_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second goes out once the first is there; the last character lacks its end."""
    seen = tmp_path / "seen"
    pieces = f"printf 'a\\342\\202'; until [ -e {seen} ]; do sleep 0.01; done; printf '\\254\\342'"
    monkeypatch.setattr(torchrun, "command", lambda script, ranks: ["sh", "-c", pieces])
    printed: list[str] = []

    def write(text: str) -> None:
        printed.append(text)
        if text.startswith("a"):
            seen.touch()

    run_script(tmp_path / "script.py", 1, 30, write)
    assert "".join(printed[1:]) == "a€\N{REPLACEMENT CHARACTER}"


@pytest.mark.days
@pytest.mark.parametrize("when", [0.0, 0.3])
def test_a_stopped_engine_goes_on(when: float) -> None:
    engine = client.engine()
    labkit.launch(on_ranks.hello, ranks=1)
    stopping = threading.Timer(when, os.kill, (engine.pid, signal.SIGSTOP))
    stopping.start()
    stopping.join() if not when else None
    assert labkit.launch(lambda: time.sleep(0.6) or 5, ranks=1, timeout=20).results == [5]
    assert client.engine() is engine


def test_a_stopped_agent_is_ended_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "_PATIENCE", 0.5)
    with labkit.session(ranks=1) as session:
        agent = int(session.run("import os\nos.getppid()").values[0])
        os.kill(agent, signal.SIGSTOP)
        with pytest.raises(labkit.LaunchError) as caught:
            session.run("while True: pass", timeout=0.5)
        assert caught.value.verdict == "infrastructure"
        assert session.run("1 + 1").values[0] == "2"


def test_an_engine_without_its_directory_is_replaced() -> None:
    engine = client.engine()
    labkit.launch(on_ranks.hello, ranks=1)
    shutil.rmtree(engine.directory)
    assert labkit.launch(on_ranks.hello, ranks=2).results == [0, 1]
    assert not processes.is_alive(engine.pid)


def _limit_with_room_for(files: int) -> int:
    """The limit that leaves numbers for so many more files: those that are open need not be the lowest."""
    listed = os.listdir("/proc/self/fd")  # with what was open to list them
    used = {int(number) for number in listed if os.path.lexists(f"/proc/self/fd/{number}")}
    free = (number for number in itertools.count() if number not in used)
    return next(itertools.islice(free, files - 1, None)) + 1


def test_an_engine_that_cannot_be_started_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whichever of its files is the one too many. Nor does one that has no place for its directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = set()
    for room in (2, 3, 4):  # with less not even a directory can be removed
        resource.setrlimit(resource.RLIMIT_NOFILE, (_limit_with_room_for(room), before[1]))
        try:
            client.EngineProcess()
        except InfrastructureError as error:
            told.add(error.diagnosis.summary.partition(": '")[0])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert list(tmp_path.iterdir()) == []
    assert told == {"the launcher's engine process cannot be started: [Errno 24] Too many open files"}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(InfrastructureError, match=r"cannot be started: .* No such file or directory"):
        client.EngineProcess()
