"""What the tests of clusters share: a job of two nodes to be in, and a JupyterLab that is left alone while
the other tests run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_helpers import UnusedLab, allocation, nothing_is_left
from slurm_cluster import LocalSlurm


@pytest.fixture
def inside(slurm: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSlurm]:
    """This process as if it ran in an allocation of both nodes, four cores each."""
    monkeypatch.setenv("LABKIT_SHARED", str(tmp_path))
    with allocation(slurm) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield slurm
    nothing_is_left(slurm, tmp_path)


@pytest.fixture(scope="session")
def unused_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnusedLab]:
    lab = UnusedLab(tmp_path_factory.mktemp("unused"))
    yield lab
    lab.stop()
