"""Every way a job can fail, on real ranks: what the error says, how soon, and that nothing is left."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rank_functions as on_ranks
import torch
import torch.distributed as dist
from waiting import wait_for_output

import labkit
from labkit import processes
from labkit.launch import client
from labkit.launch.engine.facts import read_verdict
from labkit.launch.failure.errors import Diagnosis, InfrastructureError, JobTimeout, NotNow
from labkit.launch.handover import results
from labkit.launch.handover.directory import remove
from labkit.launch.handover.request import REQUEST, VERDICT
from labkit.launch.handover.reserved import reserve
from labkit.launch.job import Job

pytestmark = pytest.mark.timeout(60)


def failure(
    function: Callable[..., Any], *args: Any, within: float, ranks: int = 2, timeout: float = 30
) -> labkit.LaunchError:
    """The error of a job, which must come `within` seconds of its start; and the next job works."""
    client.engine()
    for _ in range(2):  # warm: after its first job the engine imports more, which the second waits for
        labkit.launch(on_ranks.hello, ranks=1)
    began = time.monotonic()
    with pytest.raises(labkit.LaunchError) as caught:
        labkit.launch(function, *args, ranks=ranks, timeout=timeout)
    assert time.monotonic() - began < within
    assert labkit.launch(on_ranks.sum_of_ranks, 0.0, ranks=2).results[0].tolist() == [1.0] * 4
    return caught.value


def states(error: labkit.LaunchError) -> list[str]:
    return [report.state for report in error.ranks]


CRASH = 2.0  # seconds in which a crash is reported; the code aims at well under one
DEADLOCK = 3.5  # one second of quiet, and the launch


def test_an_exception_names_rank_line_and_cause() -> None:
    error = failure(on_ranks.raises_on_one, within=CRASH, ranks=4)
    assert (error.verdict, error.rank) == ("error", 1)
    assert states(error) == ["waiting", "failed", "waiting", "waiting"]
    assert "ValueError: the shard is empty" in str(error)
    assert 'raise ValueError("the shard is empty")' in str(error)
    assert "all_reduce of float32 (3,)" in error.ranks[0].waiting_for
    assert "rank_functions.py" in error.ranks[0].line
    assert "labkit/launch" not in str(error)  # the launcher's own frames are cut


@pytest.mark.parametrize("code", [0, 3, "bye"])
def test_sys_exit_is_a_failure(code: Any) -> None:
    error = failure(on_ranks.exits_on_one, code, within=CRASH)
    assert (error.verdict, error.rank) == ("error", 1)
    assert f"sys.exit({code!r})" in str(error)


@pytest.mark.parametrize("code", [0, 4])
def test_os_exit_is_noticed_even_with_code_0(code: int) -> None:
    error = failure(on_ranks.os_exits_on_one, code, within=CRASH)
    assert (error.verdict, error.rank) == ("error", 1)
    assert f"exit code {code}" in str(error)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (on_ranks.aborts_on_one, "SIGABRT"),
        (on_ranks.segfaults_on_one, "SIGSEGV"),
        (on_ranks.killed_on_one, "SIGKILL"),
    ],
)
def test_a_signal_is_named(function: Callable[[], None], words: str) -> None:
    error = failure(function, within=CRASH)
    assert (error.verdict, error.rank) == ("killed", 1)
    assert words in str(error)
    assert states(error) == ["waiting", "killed"]
    if words != "SIGKILL":  # faulthandler left the line
        assert function.__name__ in str(error)


def test_too_much_memory() -> None:
    error = failure(on_ranks.asks_for_too_much_memory, within=CRASH)
    assert (error.verdict, error.rank) == ("out_of_memory", 1)


def test_different_collectives() -> None:
    error = failure(on_ranks.different_collectives, within=DEADLOCK)
    assert error.verdict in ("deadlock", "error")  # gloo may notice by itself
    assert "different collectives" in str(error)
    assert "rank 0 all_reduce" in str(error)
    assert "rank 1 broadcast" in str(error)


@pytest.mark.parametrize(
    ("function", "words"),
    [(on_ranks.different_sizes, "different sizes"), (on_ranks.different_dtypes, "different dtypes")],
)
def test_the_same_collective_with_other_tensors(function: Callable[[], None], words: str) -> None:
    error = failure(function, within=DEADLOCK)
    assert error.verdict in ("deadlock", "error")
    assert words in str(error)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (on_ranks.different_counts, "rank 1 waits in all_reduce, but rank 0 has finished"),
        (on_ranks.send_without_recv, "rank 0 waits in send to rank 1, but rank 1 has finished"),
        (on_ranks.recv_from_finished, "rank 0 waits in recv from rank 1, but rank 1 has finished"),
        (on_ranks.crossing_sends, "ranks 0 and 1 send to each other, and neither receives"),
    ],
)
def test_a_deadlock_is_told_long_before_the_timeout(function: Callable[[], None], words: str) -> None:
    error = failure(function, within=DEADLOCK, timeout=30)
    assert error.verdict == "deadlock"
    assert words in str(error)
    assert function.__name__ in str(error)


@pytest.mark.parametrize("function", [on_ranks.sleeps, on_ranks.spins_in_python, on_ranks.spins_in_c])
def test_a_rank_that_does_not_end(function: Callable[[], None]) -> None:
    error = failure(function, within=1 + 3.0, timeout=1)
    assert (error.verdict, error.rank) == ("timeout", 1)
    assert states(error) == ["waiting", "running"]
    assert function.__name__ in str(error)  # its stack was taken, also inside compiled code


def test_ranks_that_wait_for_one_that_works_are_left_alone() -> None:
    """Longer than the quiet that a deadlock is told from."""
    assert labkit.launch(on_ranks.late_but_fine, 1.8, ranks=3).results == [1, 1, 1]


def test_a_rank_that_ignores_sigterm() -> None:
    error = failure(on_ranks.ignores_sigterm, within=1 + 3.0, timeout=1)
    assert error.verdict == "timeout"


def test_children_and_threads_of_ranks_end_with_the_job() -> None:
    job = labkit.launch(on_ranks.leaves_children, ranks=2)
    assert not any(processes.is_alive(pid) for pid in job.results)


def test_an_unpicklable_function_names_the_part() -> None:
    lock = threading.Lock()

    def uses_it() -> None:
        lock.acquire()

    with pytest.raises(labkit.LaunchError, match=r"`lock`, which the function uses, .* _thread.lock"):
        labkit.launch(uses_it, ranks=2)
    with pytest.raises(labkit.LaunchError, match=r"argument 1 of the function\['a'\] .* _thread.lock"):
        labkit.launch(print, {"a": lock}, ranks=2)


def test_what_goes_there_and_what_comes_back_are_searched_alike(tmp_path: Path) -> None:
    class Box:
        def __init__(self) -> None:
            self.kept = frozenset([threading.Lock()])

    nested = [[[[[[Box()]]]]]]
    where = re.escape("[0][0][0][0][0][0].kept[0]")
    with pytest.raises(labkit.LaunchError, match=f"argument 1 of the function{where} .* _thread.lock"):
        labkit.launch(print, nested, ranks=2)
    with pytest.raises(results.CannotSendBack, match=f"result{where} is a _thread.lock"):
        results.write(nested, tmp_path / "result", 1 << 20)


def test_an_unpicklable_result_names_rank_and_part() -> None:
    error = failure(on_ranks.returns_a_lock, within=CRASH)
    assert (error.verdict, error.rank) == ("error", 1)
    assert "result['model'][1] is a _thread.lock" in str(error)


def test_a_result_of_a_gigabyte_is_refused_with_the_limit() -> None:
    error = failure(on_ranks.returns_bytes, 1 << 30, within=10, ranks=1)
    assert "512 MiB" in str(error)


def test_an_unimportable_module() -> None:
    def imports() -> None:
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401

    error = failure(imports, within=CRASH)
    assert error.verdict == "error"
    assert "no_such_module" in str(error)


def test_a_megabyte_of_output_a_second() -> None:
    job = labkit.launch(on_ranks.prints_for, 1.5, 1_000_000, ranks=2)
    assert all(printed > 500_000 for printed in job.results)
    assert all(len(text) <= 1_100_000 for text in job.output)


def test_a_flood_keeps_beginning_and_end() -> None:
    job = labkit.launch(on_ranks.prints, 5_000_000, ranks=1)
    assert len(job.output[0]) < 1_100_000
    assert "bytes of output left out" in job.output[0]


def test_the_engine_killed_during_a_job() -> None:
    job = labkit.launch(on_ranks.sleeps, ranks=2, wait=False)
    wait_for_output(job)
    engine = client.engine()
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(labkit.LaunchError) as caught:
        job.wait()
    assert caught.value.verdict == "infrastructure"
    assert processes.marked(str(engine.directory)) == []
    assert not engine.directory.exists()
    assert labkit.launch(on_ranks.sum_of_ranks, 0.0, ranks=2).results[0].tolist() == [1.0] * 4


def test_the_engine_killed_between_jobs() -> None:
    engine = client.engine()
    os.kill(engine.pid, signal.SIGKILL)
    while processes.is_alive(engine.pid):
        time.sleep(0.001)
    assert labkit.launch(on_ranks.hello, ranks=1).results == [0]
    assert not engine.directory.exists()


def test_an_error_in_the_engine_is_told() -> None:
    job = labkit.launch(on_ranks.sleeps, ranks=2, wait=False)
    wait_for_output(job)
    engine = client.engine()
    engine._control.send(b"no order")
    with pytest.raises(InfrastructureError, match=r"(?s)process failed: Traceback .*JSONDecodeError"):
        job.wait()
    assert processes.marked(str(engine.directory)) == []
    assert not engine.directory.exists()


def test_a_job_that_cannot_be_begun_fails_alone() -> None:
    other = labkit.launch(on_ranks.late_but_fine, 1.0, ranks=2, wait=False)
    engine = client.engine()
    job = engine.new_job()
    reserve(job / VERDICT)
    (job / REQUEST).write_text("{}")
    engine.run(job)
    assert engine.ended(job, 20) == 3
    told = read_verdict(job)
    assert told is not None
    assert told.verdict == "infrastructure"
    assert told.summary.startswith("the job could not be started: ValidationError: ")
    remove(job)
    assert other.wait().results == [1, 1]
    assert client.engine() is engine


def test_the_agent_killed() -> None:
    job = labkit.launch(on_ranks.sleeps, ranks=2, wait=False)
    wait_for_output(job)
    agents = [
        pid for pid in processes.marked(str(client.engine().directory)) if _parent(pid) == client.engine().pid
    ]
    assert len(agents) == 1
    os.kill(agents[0], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(labkit.LaunchError) as caught:
        job.wait()
    assert caught.value.verdict == "infrastructure"
    assert "signal 9" in str(caught.value)
    assert time.monotonic() - began < CRASH


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def test_an_interrupt_ends_the_job_and_says_where_ranks_were() -> None:
    main = threading.main_thread().ident
    assert main is not None
    labkit.launch(on_ranks.hello, ranks=1)
    threading.Timer(0.8, signal.pthread_kill, (main, signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(labkit.LaunchError) as caught:
        labkit.launch(on_ranks.sleeps, ranks=2)
    assert time.monotonic() - began < 3
    assert caught.value.verdict == "interrupted"
    assert "rank 1: running" in str(caught.value)


def test_an_interrupt_that_finds_the_job_finished_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a loop of launches would go on. The results are there."""
    load = Job._load_results

    def interrupted(job: Job) -> Diagnosis | None:
        monkeypatch.undo()
        os.kill(os.getpid(), signal.SIGINT)
        return load(job)

    job = labkit.launch(on_ranks.hello, ranks=2, wait=False)
    monkeypatch.setattr(Job, "_load_results", interrupted)
    with pytest.raises(labkit.LaunchError, match="interrupted when the job had just finished") as caught:
        job.wait()
    assert caught.value.verdict == "interrupted"
    assert job.results == [0, 1]
    assert job.wait() is job


def test_results_are_had_from_jobs_that_have_some() -> None:
    job = labkit.launch(on_ranks.sleeps, ranks=2, wait=False)
    with pytest.raises(NotNow, match=r"still runs .* job\.wait\(\)"):
        _ = job.results
    job.cancel()
    with pytest.raises(labkit.LaunchError, match="was cancelled"):
        _ = job.results


def test_a_job_whose_result_has_no_text_can_be_shown() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise ValueError("no")

    job = labkit.launch(Silent, ranks=1)
    told = "a Silent (its text cannot be had: __repr__ raised ValueError)"
    assert told in repr(job)
    assert told in job._repr_html_()


def test_a_rank_that_a_signal_stopped_is_said_to_be_stopped() -> None:
    def stops() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.raises(JobTimeout, match="rank 1 was stopped by a signal"):
        labkit.launch(stops, ranks=2, timeout=2)


def test_a_message_from_oneself_is_told() -> None:
    def receives() -> None:
        dist.recv(torch.ones(3), dist.get_rank())

    with pytest.raises(labkit.LaunchError, match="a rank cannot receive from itself"):
        labkit.launch(receives, ranks=1)


def test_a_place_in_a_queue_is_refused_where_there_is_none() -> None:
    with pytest.raises(ValueError, match="nodes="):
        labkit.launch(on_ranks.hello, ranks=1, queue=5)
