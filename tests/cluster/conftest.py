"""What the tests of clusters share: a JupyterLab that is left alone while the other tests run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster_helpers import UnusedLab


@pytest.fixture(scope="session")
def unused_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnusedLab]:
    lab = UnusedLab(tmp_path_factory.mktemp("unused"))
    yield lab
    lab.stop()
