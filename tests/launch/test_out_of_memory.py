"""A rank that the kernel's out-of-memory killer ends: a real one, in a control group of its own."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_functions import allocates_in_group

import labkit

LIMIT = 200 * 2**20
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group whose processes may hold 200 MiB together."""
    first = (V1 / "cgroup.procs").exists()
    group = (V1 if first else V2) / f"labkit-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(LIMIT))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    group.rmdir()


def test_the_out_of_memory_killer_is_named(small_group: Path) -> None:
    with pytest.raises(labkit.LaunchError) as caught:
        labkit.launch(allocates_in_group, str(small_group), ranks=2)
    told = str(caught.value)
    assert "rank 1 was killed: the system ended it because memory ran out" in told
    assert "rank 0: waiting in barrier" in told
    assert "smaller tensors or fewer ranks" in told


def test_what_is_free_is_what_the_group_leaves(small_group: Path) -> None:
    """In the group itself, and in one within it that has no limit of its own, as a step within its job."""
    step = small_group / "step"
    step.mkdir()
    ask = f"{sys.executable} -c 'from labkit.hosts import free_memory; print(free_memory())'"
    try:
        for group in (small_group, step):
            words = ["sh", "-c", f"echo $$ > {group}/cgroup.procs && exec {ask}"]
            told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
            assert 0 < int(told.stdout) < LIMIT
    finally:
        step.rmdir()


def test_pages_of_files_that_were_read_are_free(small_group: Path, tmp_path: Path) -> None:
    """They fill the group up to its limit, as in a job that has read its data."""
    ask = f"exec {sys.executable} -c 'from labkit.hosts import free_memory; print(free_memory())'"
    write = f"dd if=/dev/zero of={tmp_path}/data bs=1M count={LIMIT >> 20} conv=fsync status=none"
    words = ["sh", "-c", f"echo $$ > {small_group}/cgroup.procs; {write}; {ask}"]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert LIMIT / 2 < int(told.stdout) < LIMIT


def test_a_quota_of_version_1_cuts_the_cores() -> None:
    group = Path(f"/sys/fs/cgroup/cpu/labkit-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of version 1 can be made here: {error}")
    try:
        (group / "cpu.cfs_quota_us").write_text("150000")
        ask = f"exec {sys.executable} -c 'from labkit.hosts import cores; print(cores())'"
        words = ["sh", "-c", f"echo $$ > {group}/cgroup.procs && {ask}"]
        told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        assert told.stdout == "1\n"
    finally:
        group.rmdir()


def test_a_gpu_that_the_job_may_not_open_does_not_count(tmp_path: Path) -> None:
    """As Slurm keeps a job from those of its node that it did not ask for (ConstrainDevices)."""
    group = Path(f"/sys/fs/cgroup/devices/labkit-test-{os.getpid()}")
    (tmp_path / "dev").mkdir()
    try:
        for number in range(2):
            os.mknod(tmp_path / f"dev/nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(195, number))
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of devices can be made here: {error}")
    count = (
        "from labkit.hosts import gpu_count; from pathlib import Path; "
        f"print(gpu_count(root=Path('{tmp_path}')))"
    )
    try:
        (group / "devices.deny").write_text("c 195:1 rwm")
        words = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec {sys.executable} -c "{count}"']
        environment = {n: v for n, v in os.environ.items() if n != "CUDA_VISIBLE_DEVICES"}
        told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, env=environment)
        assert told.stdout == "1\n"
    finally:
        group.rmdir()
