"""What the launcher's tests share. After each nothing of a job may be left: no process, no directory."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from launch_helpers import leftovers

import labkit
from labkit.launch import client
from labkit.launch.session import Session


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


@pytest.fixture
def session() -> Iterator[Session]:
    """Two ranks that stay for the test."""
    with labkit.session(ranks=2) as running:
        yield running
