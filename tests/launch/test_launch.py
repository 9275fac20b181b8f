"""Launching a function on ranks: results, output, environment, and what it may be."""

from __future__ import annotations

import functools
import math
import os
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import rank_functions as on_ranks
import torch
import torch.distributed as dist
from launch_helpers import leftovers
from waiting import wait_for_output

import labkit
from labkit import hosts
from labkit.launch import client
from labkit.launch.api import start
from labkit.launch.failure.errors import Diagnosis, InfrastructureError
from labkit.launch.handover.request import Wanted

pytestmark = pytest.mark.timeout(60)


def test_every_rank_returns_its_result() -> None:
    job = labkit.launch(on_ranks.sum_of_ranks, 10.0, ranks=4)
    assert [r.tolist() for r in job.results] == [[46.0] * 4] * 4
    assert (job.ranks, job.backend, job.done) == (4, "gloo", True)
    assert job.wall_seconds < 20
    assert "4 ranks" in repr(job)


def test_a_closure_with_a_local_class_travels() -> None:
    class Shard:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def doubled(self) -> int:
            return self.rank * factor

    factor = 2

    def on_rank(*, offset: int) -> int:
        return Shard(dist.get_rank()).doubled() + offset

    assert labkit.launch(on_rank, ranks=2, offset=5).results == [5, 7]


@pytest.mark.skipif(not hasattr(dist, "config"), reason="a module that this torch does not have")
def test_a_function_with_an_attribute_named_like_a_module_of_torchs_travels() -> None:
    """cloudpickle takes it to use torch.distributed.config, which pickle cannot send."""

    class Model:
        config = 3

    def job() -> int:
        return Model().config + dist.get_rank()

    assert labkit.launch(job, ranks=2).results == [3, 4]


def test_output_is_kept_apart_per_rank() -> None:
    job = labkit.launch(on_ranks.hello, ranks=2)
    for rank in range(2):
        assert sorted(job.output[rank].splitlines()) == ["from a shell", f"hello from {rank}", "to stderr"]


def test_output_is_printed_while_the_job_runs(capsys: pytest.CaptureFixture[str]) -> None:
    labkit.launch(on_ranks.hello, ranks=2)
    printed = capsys.readouterr().out
    assert "[rank 0] hello from 0\n" in printed
    assert "[rank 1] hello from 1\n" in printed


def test_a_job_whose_output_cannot_be_shown_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def prints() -> None:
        import time

        print("größer")
        time.sleep(60)

    with open(os.devnull, "w", encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        with pytest.raises(UnicodeEncodeError):
            labkit.launch(prints, ranks=1)
    assert leftovers() == []


def test_ranks_have_torchruns_environment_and_the_notebooks_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "EXTRA"]

    def look() -> list[str]:
        return [os.environ[name] for name in names] + [os.getcwd()]

    job = labkit.launch(look, ranks=2, env={"EXTRA": "yes"})
    assert job.results == [[str(r), str(r), "2", "2", "127.0.0.1", "yes", str(tmp_path)] for r in range(2)]


def test_a_job_can_have_its_own_place_for_temporary_files(tmp_path: Path) -> None:
    job = labkit.launch(tempfile.gettempdir, ranks=2, env={"TMPDIR": str(tmp_path)})
    assert job.results == [str(tmp_path)] * 2
    assert labkit.launch(tempfile.gettempdir, ranks=1).results == [tempfile.gettempdir()]


def test_a_rank_computes_with_one_thread_unless_more_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many cores there are, and also where it is alone: others on the node have notebooks too."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert labkit.launch(torch.get_num_threads, ranks=1).results == [1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert labkit.launch(torch.get_num_threads, ranks=2).results == [2, 2]


@pytest.mark.days
def test_inherited_rank_variables_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    client.shut_down()  # the engine takes its environment when it starts
    for name, value in {
        "RANK": "7",
        "WORLD_SIZE": "9",
        "MASTER_ADDR": "10.9.9.9",
        "MASTER_PORT": "29500",
        "LOCAL_RANK": "3",
        "TORCHELASTIC_RUN_ID": "other",
    }.items():
        monkeypatch.setenv(name, value)
    assert labkit.launch(on_ranks.sum_of_ranks, 0.0, ranks=2).results[0].tolist() == [1.0] * 4
    client.shut_down()


def test_a_module_beside_the_notebook_is_imported_fresh(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def value() -> int:
        import beside_the_notebook  # type: ignore[import-not-found]

        return int(beside_the_notebook.VALUE)

    for expected in (1, 2):
        Path("beside_the_notebook.py").write_text(f"VALUE = {expected}\n" + "#" * expected)
        assert labkit.launch(value, ranks=1).results == [expected]


def test_results_come_back_small() -> None:
    """A row of a large tensor is sent, not the tensor; gradients and leafness do not get in the way."""

    def row() -> torch.Tensor:
        return (torch.ones(1000, 1000, requires_grad=True) * 2)[0, :3]

    job = labkit.launch(row, ranks=1)
    assert job.results[0].tolist() == [2.0, 2.0, 2.0]
    assert job.results[0].untyped_storage().nbytes() == 12


def test_a_background_job_can_be_looked_at_and_cancelled() -> None:
    job = labkit.launch(on_ranks.sleeps, ranks=2, wait=False)
    wait_for_output(job)
    assert not job.poll()
    assert "running" in repr(job)
    job.cancel()
    assert job.poll()
    assert leftovers() == []
    with pytest.raises(labkit.LaunchError) as caught:
        job.wait()
    assert caught.value.verdict == "cancelled"
    assert "rank 1: running" in str(caught.value)


def test_a_job_whose_end_two_threads_see_is_collected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has the diagnosis, and the directory is gone."""
    job = labkit.launch(on_ranks.hello, ranks=2, wait=False)
    ended = job.run.ended

    def late(timeout: float) -> Diagnosis | None:
        found = ended(timeout)
        if found is not None:
            monkeypatch.undo()
            with ThreadPoolExecutor() as other:
                other.submit(job.wait).result()
        return found

    monkeypatch.setattr(job.run, "ended", late)
    assert job.wait().results == [0, 1]
    assert len(job.memory) == 2


def test_what_is_told_to_a_job_that_another_thread_has_collected_is_too_late() -> None:
    job = labkit.launch(on_ranks.hello, ranks=1, wait=False).wait()
    job.stop("cancelled")
    job.set_deadline(1.0)
    assert job.hold() is None
    assert job.error is None


def test_two_jobs_at_once() -> None:
    jobs = [labkit.launch(on_ranks.late_but_fine, 0.2, ranks=2, wait=False) for _ in range(2)]
    assert [job.wait().results for job in jobs] == [[1, 1], [1, 1]]


def test_what_backward_imports_is_there_before_the_second_job() -> None:
    """Else every rank of every job imports some 480 modules for itself, longer than most jobs take."""

    def imported_by_backward() -> list[str]:
        before = set(sys.modules)
        x = torch.ones(2, requires_grad=True)
        (2 * x).backward(torch.ones(2))
        return sorted(set(sys.modules) - before)

    labkit.launch(on_ranks.sum_of_ranks, 1.0, ranks=1)
    assert labkit.launch(imported_by_backward, ranks=1).results == [[]]


def test_what_a_job_names_is_imported_once_and_not_by_its_ranks() -> None:
    def loaded() -> list[str]:
        return [name for name in ("labkit.checks.execute", "labkit.checks.lesson_01") if name in sys.modules]

    wanted = ["labkit.checks.execute", "labkit.checks.lesson_01", "no.such.module"]
    assert start(loaded, wanted=Wanted(2, imports=wanted)).wait().results == [wanted[:2]] * 2


@pytest.mark.days
def test_a_job_inside_a_job() -> None:
    def outer() -> float:
        inner = labkit.launch(on_ranks.sum_of_ranks, 1.0, ranks=2)
        return float(inner.results[0][0])

    assert labkit.launch(outer, ranks=1).results == [3.0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *(({"ranks": ranks}, "from 1 to 512") for ranks in (0, True, 1000, "2")),
        ({"ranks": 512}, r"at most \d+ on the \d+ cores here"),
        *(({"timeout": t}, "timeout must be a number") for t in (0, -1, None, "5", math.inf, math.nan)),
        *(({"nodes": nodes}, "nodes must be a whole number") for nodes in (0, True, "2")),
        *(({"seed": seed}, "seed must be a whole number") for seed in (-1, True, 1.5)),
        ({"env": {"A": 1}}, "env must have texts"),
        ({"env": "A=1"}, "env must be a dict"),
        ({"env": {"A=B": "c"}}, "env cannot have 'A=B'"),
        ({"env": {"": "c"}}, "a name needs a character"),
        ({"env": {"A": "c\0d"}}, "a value no zero byte"),
        ({"env": {"A": "\ud800"}}, "both must be UTF-8"),
        ({"backend": "mpi"}, "'gloo' or 'nccl'"),
    ],
)
def test_wrong_arguments_are_told_before_anything_starts(
    arguments: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "cores", lambda: 2)
    client.shut_down()
    with pytest.raises((TypeError, ValueError), match=words) as caught:
        labkit.launch(on_ranks.hello, **{"ranks": 2, **arguments})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    if "timeout" not in arguments:  # of a session, each cell has its own
        with pytest.raises((TypeError, ValueError), match=words):
            labkit.session(**{"ranks": 2, **arguments})  # type: ignore[arg-type]
    assert client.running_engine() is None


def test_what_is_no_function_is_told() -> None:
    with pytest.raises(TypeError, match="expects a function"):
        labkit.launch(3)  # type: ignore[arg-type]


def test_another_system_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(InfrastructureError, match=r"on Linux, and this is Darwin: .* container"):
        client.EngineProcess()


async def later() -> int:
    return 3


def test_an_async_function_is_told() -> None:
    with pytest.raises(TypeError, match=r"found an async one, later: .* asyncio\.run"):
        labkit.launch(later)
    with pytest.raises(TypeError, match=r"found an async one, functools\.partial\(<function later"):
        labkit.launch(functools.partial(later))


@pytest.mark.days
def test_an_import_path_may_have_what_is_no_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Python's import passes over it."""
    monkeypatch.syspath_prepend(tmp_path)
    sys.path.insert(0, tmp_path)  # type: ignore[arg-type]
    (tmp_path / "beside_the_notebook.py").write_text("x = 3\n")

    def imports() -> int:
        import beside_the_notebook  # type: ignore[import-not-found]

        return int(beside_the_notebook.x)

    assert labkit.launch(imports, ranks=1).results == [3]


def test_a_notebook_whose_folder_is_gone_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError, match="folder that this notebook was started in is gone: go to"):
        labkit.launch(on_ranks.hello, ranks=1)


def test_a_misspelt_option_is_told() -> None:
    """The ranks would only say that the function does not take it."""
    with pytest.raises(TypeError, match=r"hello\(\) takes no argument 'rank'; did you mean ranks="):
        labkit.launch(on_ranks.hello, rank=2)
    assert labkit.launch(lambda **given: given["rank"], rank=2, ranks=1).results == [2]


def draws() -> tuple[float, float, float]:
    import random

    import numpy

    return float(torch.rand((), dtype=torch.float64)), float(numpy.random.rand()), random.random()


@pytest.mark.days
def test_every_rank_of_every_launch_draws_other_numbers() -> None:
    """As processes of torchrun do: who forgets to broadcast the weights sees it here too."""
    drawn = [numbers for _ in range(2) for numbers in labkit.launch(draws, ranks=2).results]
    for of_one_kind in zip(*drawn, strict=True):
        assert len(set(of_one_kind)) == 4


def test_a_seed_makes_the_numbers_those_of_manual_seed() -> None:
    drawn = labkit.launch(draws, ranks=2, seed=7).results
    assert drawn == labkit.launch(draws, ranks=2, seed=7).results
    for rank, numbers in enumerate(drawn):
        generator = torch.Generator().manual_seed(7 + rank)
        assert numbers[0] == float(torch.rand((), dtype=torch.float64, generator=generator))
        assert numbers[2] == random.Random(7 + rank).random()


def test_ranks_can_make_their_process_group_anew() -> None:
    """By MASTER_ADDR and MASTER_PORT, as a script under torchrun makes its first."""

    def work() -> float:
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        x = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(x)
        return float(x)

    assert labkit.launch(work, ranks=2).results == [1.0, 1.0]


def test_ranks_listen_on_the_loopback_alone() -> None:
    """What travels between them can be pickled objects: no other machine may send any."""

    def listening() -> list[str]:
        return [c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN"]

    found = [address for addresses in labkit.launch(listening, ranks=2).results for address in addresses]
    assert set(found) <= {"127.0.0.1"}


def test_the_directory_is_private_and_nothing_is_shared() -> None:
    engine = client.engine()
    assert engine.directory.stat().st_mode & 0o777 == 0o700
    assert engine.directory.stat().st_uid == os.getuid()


def test_a_process_that_the_function_forks_does_not_return_for_its_rank() -> None:
    for _ in range(2):
        job = labkit.launch(lambda: "parent" if os.fork() else "child", ranks=2)
        assert job.results == ["parent", "parent"]
        assert "which this code forked, came to its end" in job.output[1]


def test_a_function_may_close_what_it_prints_to() -> None:
    def closes() -> int:
        sys.stdout.close()
        return dist.get_rank()

    assert labkit.launch(closes, ranks=2).results == [0, 1]


@pytest.mark.days
def test_ranks_of_one_machine_stay_on_its_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a cluster's modules name for jobs of several nodes; what `env` says is meant."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth99")
    client.shut_down()  # the next one has the variable
    try:
        assert labkit.launch(on_ranks.sum_of_ranks, 0.0, ranks=2).results[0].tolist() == [1.0] * 4
        with pytest.raises(labkit.LaunchError, match="eth99"):
            labkit.launch(on_ranks.sum_of_ranks, 0.0, ranks=2, env={"GLOO_SOCKET_IFNAME": "eth99"})
    finally:
        client.shut_down()
