"""Launching a function on ranks: results, output, environment, and what it may be."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import rank_functions as on_ranks
import torch
import torch.distributed as dist
from launch_helpers import wait_for_output

import labkit
from labkit.launch import client
from labkit.launch.api import start
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


def test_a_function_with_an_attribute_named_like_a_module_of_torchs_travels() -> None:
    """cloudpickle takes it to use torch.distributed.config, which pickle cannot send."""

    class Model:
        config = 3

    def job() -> int:
        return Model().config + dist.get_rank()

    assert dist.config is not None
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


def test_ranks_have_torchruns_environment_and_the_notebooks_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "EXTRA"]

    def look() -> list[str]:
        return [os.environ[name] for name in names] + [os.getcwd()]

    job = labkit.launch(look, ranks=2, env={"EXTRA": "yes"})
    assert job.results == [[str(r), str(r), "2", "2", "127.0.0.1", "yes", str(tmp_path)] for r in range(2)]


def test_inherited_rank_variables_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    client.shut_down()  # the engine takes its environment when it starts
    for name, value in {"RANK": "7", "WORLD_SIZE": "9", "MASTER_ADDR": "10.9.9.9", "MASTER_PORT": "29500",
                        "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "other"}.items():  # fmt: skip
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
    began = time.monotonic()
    job.cancel()
    assert time.monotonic() - began < 1.5
    with pytest.raises(labkit.LaunchError) as caught:
        job.wait()
    assert caught.value.verdict == "cancelled"
    assert "rank 1: running" in str(caught.value)


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


def test_a_job_inside_a_job() -> None:
    def outer() -> float:
        inner = labkit.launch(on_ranks.sum_of_ranks, 1.0, ranks=2)
        return float(inner.results[0][0])

    assert labkit.launch(outer, ranks=1).results == [3.0]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"ranks": 0}, ValueError, "from 1 to 512"),
        ({"ranks": 2, "timeout": 0}, ValueError, "positive"),
        ({"ranks": 2, "nodes": 0}, ValueError, "nodes"),
        ({"ranks": 2, "backend": "mpi"}, ValueError, "'gloo' or 'nccl'"),
    ],
)
def test_wrong_arguments_say_what_is_expected(
    arguments: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        labkit.launch(on_ranks.hello, **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expects a function"):
        labkit.launch(3)  # type: ignore[arg-type]


def test_the_directory_is_private_and_nothing_is_shared() -> None:
    engine = client.engine()
    assert engine.directory.stat().st_mode & 0o777 == 0o700
    assert engine.directory.stat().st_uid == os.getuid()
