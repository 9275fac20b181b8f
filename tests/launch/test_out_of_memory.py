"""A rank that the kernel's out-of-memory killer ends: a real one, in a control group of its own."""

from __future__ import annotations

import os
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
