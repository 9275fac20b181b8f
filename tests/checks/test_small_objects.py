"""Python's small objects lie in memory of its own, and are counted there."""

from __future__ import annotations

import os

import pytest

from labkit.checks.shared.small_objects import bytes_of_small_objects

PIECE = 400  # bytes: small enough for Python's own allocator
NUMBER = 10_000


def test_short_bytes_are_counted_while_they_are_there() -> None:
    before = bytes_of_small_objects()
    kept = [os.urandom(PIECE) for _ in range(NUMBER)]
    there = bytes_of_small_objects() - before
    assert PIECE * NUMBER <= there <= 1.5 * PIECE * NUMBER
    kept.clear()
    assert bytes_of_small_objects() - before < there / 10


def test_nothing_is_written_to_anybodys_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    files = len(os.listdir("/proc/self/fd"))
    bytes_of_small_objects()
    assert len(os.listdir("/proc/self/fd")) == files
    assert capfd.readouterr() == ("", "")
