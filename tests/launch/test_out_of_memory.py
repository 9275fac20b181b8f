"""A rank that the kernel's out-of-memory killer ends: a real one, in a control group of its own."""

from __future__ import annotations

import os
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
