"""What the launcher's tests share. After each nothing of a job may be left: no process, no directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from launch_helpers import leftovers
from waiting import soon

import labkit
from labkit.launch import client
from labkit.launch.session import Session


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    soon(lambda: not leftovers(), within=1)
    if left := leftovers():
        client.shut_down()  # the next test starts clean
    assert left == []


@pytest.fixture
def session() -> Iterator[Session]:
    """Two ranks that stay for the test."""
    with labkit.session(ranks=2) as running:
        yield running
