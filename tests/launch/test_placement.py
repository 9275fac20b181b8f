"""Which devices and threads ranks get, and that no two notebooks get the same GPU: no ranks are needed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from waiting import wait_for_output

import labkit
from labkit import hosts
from labkit.hosts import choose_placement, gpu_count
from labkit.launch.engine import gpu_lock
from labkit.launch.handover.request import Request, Wanted
from labkit.launch.here import Here
from labkit.launch.nodes.files import read_reports


def test_a_gpu_is_held_by_one_engine_at_a_time() -> None:
    name = f"test-{os.getpid()}"
    code = f"""
from labkit.launch.engine.gpu_lock import GpuLocks
locks = GpuLocks()
print(repr(locks.take([{name!r}])), flush=True)
input()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    other = subprocess.Popen([sys.executable, "-c", code], **pipes)  # type: ignore[call-overload]
    assert other.stdout is not None
    assert other.stdout.readline() == "''\n"
    locks = gpu_lock.GpuLocks()
    taken = locks.take(["free", name])
    assert f"GPU {name} is in use by" in taken
    assert f"process {other.pid}" in taken
    other.communicate("\n")
    assert locks.take([name]) == ""
    assert locks.take([name]) == ""  # another job of the same notebook
    locks.give_back([name])
    assert name in locks._sockets
    locks.give_back([name])
    assert name not in locks._sockets


def test_a_gpu_that_many_have_asked_for_is_still_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lock, "_ASKED", 4)
    locks, others, name = gpu_lock.GpuLocks(), gpu_lock.GpuLocks(), f"test-{os.getpid()}"
    assert locks.take([name]) == ""
    told = [others.take([name]) for _ in range(10)]
    locks.give_back([name])
    assert f"process {os.getpid()}" in told[0]
    assert told[-1] == f"GPU {name} is in use by another notebook"


def test_a_lock_that_cannot_be_had_is_not_told_as_taken() -> None:
    """With room for one more open file of the two that are needed, in a process of its own."""
    code = f"""
import os, resource
from labkit.launch.engine.gpu_lock import GpuLocks
names, others = [f"test-{os.getpid()}-{{number}}" for number in range(2)], GpuLocks()
before = resource.getrlimit(resource.RLIMIT_NOFILE)
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, before[1]))
locks = GpuLocks()
try:
    print(locks.take(names))
except OSError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, before)
print(repr(others.take(names)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[Errno 24] Too many open files\n''\n", done.stderr


def test_a_gpu_is_free_once_its_job_has_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Although another job of the same notebook was forked meanwhile, and runs on."""

    def until(name: str) -> None:
        print("ready", flush=True)
        while not Path(name).exists():
            time.sleep(0.01)

    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: True)  # and nobody uses these GPUs
    gpus = [f"GPU-{os.getpid()}-{number}" for number in range(2)]
    ends = [tmp_path / gpu for gpu in gpus]
    jobs = [
        labkit.launch(until, str(end), ranks=1, backend="gloo", env={"CUDA_VISIBLE_DEVICES": gpu}, wait=False)
        for gpu, end in zip(gpus, ends, strict=True)
    ]
    for job in jobs:
        wait_for_output(job)
    another = gpu_lock.GpuLocks()
    assert "in use by" in another.take([gpus[0]])
    ends[0].touch()
    jobs[0].wait()
    assert another.take([gpus[0]]) == ""
    ends[1].touch()
    jobs[1].wait()


def test_gpus_are_named_alike_for_all() -> None:
    assert gpu_lock.device_names([0, 1, 1], {"CUDA_VISIBLE_DEVICES": "2,3"}) == ["2", "3"]
    assert gpu_lock.device_names([1], {}) == ["1"]
    assert gpu_lock.device_names([], {}) == []


@pytest.mark.parametrize("said", ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS"])
def test_jobs_that_count_their_gpus_from_0_do_not_meet(said: str) -> None:
    """Each of two jobs on a machine has the GPUs "0" and "1", and they are four."""
    one, two = ({"CUDA_VISIBLE_DEVICES": "0,1", said: of_job} for of_job in ("1,2", "4,6"))
    assert gpu_lock.device_names([0, 1], one) == ["1", "2"]
    assert gpu_lock.device_names([0, 1], two) == ["4", "6"]
    assert gpu_lock.device_names([0], {"CUDA_VISIBLE_DEVICES": "1", said: "4,6"}) == ["6"]


@pytest.mark.parametrize(("visible", "shows"), [("1", 1), ("", 0), ("0,-1,1", 1)])
def test_gpus_that_are_not_shown_are_missed_in_a_sentence(visible: str, shows: int) -> None:
    with pytest.raises(ValueError, match=f"have 2 GPUs, .*='{visible}' shows {shows}:"):
        gpu_lock.device_names([0, 1], {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.days
def test_a_node_takes_the_gpus_that_its_ranks_will_see(tmp_path: Path) -> None:
    """Those of the job's environment. Without them it says why, and forks no rank."""
    code = """
import sys
from pathlib import Path
from labkit.launch.nodes.agent import Met, Report, run_node
print(run_node(Path(sys.argv[1]), Report(0, "n1", "7.0"), Met(0, 1, "127.0.0.1", 1), "127.0.0.1"))
"""
    locks, taken = gpu_lock.GpuLocks(), f"GPU-{os.getpid()}-taken"
    assert locks.take([taken]) == ""
    told = []
    for devices in ([1], [2]):
        env = {"CUDA_VISIBLE_DEVICES": f"GPU-{os.getpid()}-free,{taken}"}
        Request(ranks=1, backend="gloo", timeout=5, devices=devices, env=env).write(tmp_path)
        command = [sys.executable, "-c", code, str(tmp_path)]
        own = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1"}
        done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=60)
        assert done.stdout == "False\n", done.stderr
        told.append(read_reports(tmp_path, 1)[0].reason)
    locks.give_back([taken])
    assert told[0].startswith(f"GPU {taken} is in use by")
    assert told[1].startswith("the GPUs of the ranks cannot be taken: ranks were to have 3 GPUs, and")


def test_a_job_that_counts_as_the_machine_does() -> None:
    told = {"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "2,3"}
    assert gpu_lock.device_names([0, 1], told) == ["2", "3"]
    assert gpu_lock.device_names([0], {"CUDA_VISIBLE_DEVICES": "GPU-5968838c", "SLURM_JOB_GPUS": "2"}) == [
        "GPU-5968838c"
    ]


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("0,1", 2), ("GPU-5968838c,MIG-1", 2), ("", 0), ("-1", 0), ("NoDevFiles", 0), ("0,all,1", 1)],
)
def test_gpus_are_counted_as_cuda_does(monkeypatch: pytest.MonkeyPatch, visible: str, gpus: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_count() == gpus


def test_a_torch_without_cuda_takes_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: False)
    found = choose_placement(None, None)
    assert (found.backend, found.devices) == ("gloo", ())
    assert "2 GPUs there, and a torch without CUDA" in found.notes[0]
    with pytest.raises(ValueError, match="torch without CUDA"):
        choose_placement(2, "nccl")


def test_whether_torch_has_cuda_is_read_from_its_file() -> None:
    assert hosts.torch_has_cuda() == (torch.version.cuda is not None)


@pytest.mark.parametrize(("said", "threads"), [("", 1), ("3", 3), ("4,2", 4), ("0", 1)])
def test_threads_of_a_rank(monkeypatch: pytest.MonkeyPatch, said: str, threads: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert choose_placement(2, "gloo").threads == threads


def test_threads_that_are_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="OMP_NUM_THREADS must be a number of threads, found 'many'"):
        choose_placement(2, "gloo")


def test_placing_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: True)
    assert gpu_count() == 2
    assert choose_placement(None, None).ranks == 2
    assert choose_placement(2, None).backend == "nccl"
    shared = choose_placement(4, None)
    assert (shared.backend, shared.devices) == ("gloo", (0, 1, 0, 1))
    assert "4 ranks share 2 GPUs" in shared.notes[0]
    with pytest.raises(ValueError, match="one GPU a rank: 4 ranks, 2 GPUs"):
        choose_placement(4, "nccl")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_placement(None, None) == choose_placement(4, "gloo")


def test_ranks_that_want_no_gpus_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: True)
    both, neither = (Here().plan(Wanted(2, gpus=gpus))[0] for gpus in (True, False))
    assert (both.backend, both.devices) == ("nccl", [0, 1])
    assert (neither.backend, neither.devices) == ("gloo", [])
    assert neither.env == {"CUDA_VISIBLE_DEVICES": ""}


def test_ranks_are_placed_by_the_environment_that_they_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """`launch(env=...)` has the last word on GPUs and threads, also where it takes back what there is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    monkeypatch.setattr(hosts, "torch_has_cuda", lambda: True)
    hidden, _ = Here().plan(Wanted(env={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"}))
    assert (hidden.ranks, hidden.backend, hidden.devices, hidden.threads) == (4, "gloo", [], 2)
    second, _ = Here().plan(Wanted(env={"CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": ""}))
    assert (second.ranks, second.backend, second.devices, second.threads) == (1, "nccl", [0], 1)


def test_gpus_are_counted_where_a_container_shows_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_count(root=tmp_path) == 0
    listed = tmp_path / "proc/driver/nvidia/gpus"
    for number in range(8):
        (listed / f"0000:0{number}:00.0").mkdir(parents=True)
    assert gpu_count(root=tmp_path) == 8
    (tmp_path / "dev").mkdir()
    for name in ("nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / "dev" / name).touch()
    assert gpu_count(root=tmp_path) == 1
