"""Jobs without a notebook: what they leave as files, one at a time and several in a row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit.launch.engine.facts import diagnose_directory, read_verdict
from labkit.launch.engine.gpu_lock import GpuLocks
from labkit.launch.standalone import main
from labkit.record.files import read_records

pytestmark = pytest.mark.timeout(60)

MODULE = """
import os, pathlib
import torch, torch.distributed as dist

def fine(directory):
    dist.all_reduce(torch.ones(3))
    pathlib.Path(directory, f"answer{dist.get_rank()}").write_text("42")
    print("done on", dist.get_rank())

def asks(directory):
    from labkit.launch.engine.gpu_lock import GpuLocks
    print(GpuLocks().take([os.environ["CUDA_VISIBLE_DEVICES"]]))

def stuck(directory):
    if dist.get_rank() == 0:
        dist.recv(torch.ones(3), 1)

def wrong(directory):
    if dist.get_rank() == 1:
        raise ValueError("no")
    dist.barrier()

def disagree(directory):
    dist.broadcast(torch.ones(2 if dist.get_rank() == 0 else 4), 0)
"""

ODD: list[dict[str, object]] = [
    {"ranks": 0, "timeout": 5},
    {"ranks": 1, "timeout": -1},
    {"ranks": 1, "timeout": "long"},
]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "submitted.py").write_text(MODULE)
    return tmp_path


def run(work: Path, *arguments: str, requests: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "labkit.launch.standalone", *arguments]
    return subprocess.run(command, cwd=work, input=requests, capture_output=True, text=True, timeout=50)


@pytest.mark.days
def test_one_job_and_its_files(work: Path) -> None:
    job = work / "job"
    job.mkdir()
    done = run(work, "job", "--ranks", "2", "--timeout", "20", "--", "submitted:fine")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "finished"
    assert (job / "answer1").read_text() == "42"
    assert (job / "rank1.log").read_text() == "done on 1\n"
    assert json.loads((job / "job.json").read_text())["verdict"] == "finished"
    record = read_records([job / f"rank{rank}.records.json" for rank in range(2)])
    calls = sorted(record.collectives, key=lambda c: c.rank)
    assert [(call.rank, call.op, call.num_bytes) for call in calls] == [
        (0, "all_reduce", 12),
        (1, "all_reduce", 12),
    ]
    assert len(record.memory) == 2
    again = run(work, "job", "--", "submitted:fine")
    assert again.returncode == 2
    assert again.stderr.endswith("job has had a job already: give each job a directory of its own\n")


@pytest.mark.days
def test_several_jobs_from_one_process(work: Path) -> None:
    requests = []
    for name in ("fine", "stuck", "wrong", "missing", "disagree", "fine2"):
        (work / name).mkdir()
        target = f"submitted:{name.rstrip('2')}"
        requests.append(
            json.dumps({"directory": str(work / name), "target": target, "ranks": 2, "timeout": 10})
        )
    requests.append('{"directory": "/nowhere/at/all", "target": "submitted:fine", "ranks": 2, "timeout": 5}')
    requests.append("not JSON")
    requests += [
        json.dumps({"directory": str(work / "odd"), "target": "submitted:fine", **odd}) for odd in ODD
    ]
    (work / "odd").mkdir()
    done = run(work, "--serve", requests="\n".join(requests) + "\n")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    verdicts = [answer.get("verdict") for answer in answers]
    assert verdicts == ["finished", "deadlock", "error", "error", "error", "finished"] + [None] * 5
    assert all("error" in answer for answer in answers[6:])
    assert "ranks must be a whole number from 1" in answers[8]["error"]
    assert "timeout must be a number of seconds" in answers[9]["error"]
    assert list((work / "odd").iterdir()) == []
    stuck = diagnose_directory(work / "stuck")
    assert (stuck.verdict, stuck.rank) == ("deadlock", 0)
    assert "rank 0 waits in recv from rank 1, but rank 1 has finished" in stuck.summary
    assert "ValueError: no" in diagnose_directory(work / "wrong").summary
    assert "missing" in diagnose_directory(work / "missing").summary
    assert "ranks did not agree in their collective call 1" in diagnose_directory(work / "disagree").summary


@pytest.mark.days
def test_a_job_that_cannot_be_is_refused_in_one_line(work: Path) -> None:
    (work / "job").mkdir()
    for options, told in (
        (["--ranks", "0"], "ranks must be a whole number from 1"),
        (["--timeout", "nan"], "timeout must be a number of seconds"),
    ):
        done = run(work, "job", *options, "--", "submitted:fine")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"Error: {told}" in done.stderr
        assert "Traceback" not in done.stderr
    assert list((work / "job").iterdir()) == []


@pytest.mark.days
def test_gpus_are_taken_while_a_job_runs(work: Path) -> None:
    """One that a notebook has is refused; by the next jobs of this process it is taken again."""
    code = "from labkit import hosts; hosts.torch_has_cuda = lambda: True\n"
    code += "from labkit.launch.standalone import main; main()"
    gpu, notebook = f"GPU-{os.getpid()}", GpuLocks()
    jobs = [work / name for name in ("refused", "first", "second")]
    assert notebook.take([gpu]) == ""
    with subprocess.Popen(
        [sys.executable, "-c", code, "--serve"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
        cwd=work,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        verdicts = []
        for job in jobs:
            job.mkdir()
            about = {"directory": str(job), "target": "submitted:asks", "ranks": 1, "timeout": 20}
            server.stdin.write(json.dumps({**about, "backend": "gloo"}) + "\n")
            server.stdin.flush()
            verdicts.append(json.loads(server.stdout.readline())["verdict"])
            notebook.give_back([gpu] if job is jobs[0] else [])
        server.stdin.close()
    assert verdicts == ["infrastructure", "finished", "finished"]
    refused = read_verdict(jobs[0])
    assert refused is not None
    assert refused.summary.startswith(f"GPU {gpu} is in use by")
    for job in jobs[1:]:
        assert (job / "rank0.log").read_text().startswith(f"GPU {gpu} is in use by")


def test_help_tells_the_exit_status_of_a_job_that_failed() -> None:
    said = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    assert "All that it leaves is files in DIRECTORY. Exits 0 when every rank finished, and 3 when" in said


@pytest.mark.days
def test_damaged_files_are_said_to_be_damaged(work: Path) -> None:
    (work / "job").mkdir()
    assert run(work, "job", "--ranks", "2", "--", "submitted:wrong").returncode == 3
    (work / "job" / "rank1.status.json").write_text('{"rank": 1}')
    with pytest.raises(ValueError, match="no whole report"):
        diagnose_directory(work / "job")
