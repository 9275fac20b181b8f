"""A JupyterLab that nobody uses ends by itself, and its kernel before it, by Jupyter's own settings.

Jupyter looks once a minute, and not sooner, whether it is used: so it is started by the first test that asks
for the fixture, and looked at by the last.
"""

from __future__ import annotations

import time

import pytest
from cluster_helpers import UnusedLab

pytestmark = [pytest.mark.days(9), pytest.mark.timeout(150)]


def test_it_ends_by_itself(unused_lab: UnusedLab) -> None:
    until = unused_lab.began + 100
    while unused_lab.process.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    log = unused_lab.log.read_text()
    assert unused_lab.process.poll() == 0, f"still running 100 s after its last use: {log}"
    assert unused_lab.had_kernel
    assert not list(unused_lab.folder.glob("*.json")), "how to reach it is gone with it"
