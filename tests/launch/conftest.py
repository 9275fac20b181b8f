"""After each test of the launcher nothing of a job may be left: no process, no directory."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from launch_helpers import leftovers

from labkit.launch import client


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    until = time.monotonic() + 1
    while leftovers() and time.monotonic() < until:
        time.sleep(0.01)
    left = leftovers()
    if left:
        client.shut_down()  # the next test starts clean
    assert left == []
