"""What a call leaves behind is counted when what other threads have yet to let go of is gone."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from labkit.checks.shared import held

BYTES = 8 * 2**20
LONGER = 4 * held.SETTLES  # that a thread of a backend's may need where it seldom gets a turn


@pytest.fixture
def of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as a rank that has another beside it."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)


def _at_work(seconds: float) -> None:
    """Compute, in C, without Python's lock."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 20_000)


def test_a_thread_that_has_something_to_do_is_waited_for(of_two: None) -> None:
    """As a backend's does that holds a collective's tensors until its turn has come."""
    threads: list[threading.Thread] = []

    def prepare() -> Callable[[], None]:
        for thread in threads:
            thread.join()
        return call

    def call() -> None:
        tensor = torch.ones(BYTES // 4)

        def let_go_later() -> None:
            nonlocal tensor
            _at_work(LONGER)
            del tensor

        threads.append(threading.Thread(target=let_go_later))
        threads[-1].start()

    assert held.bytes_kept(prepare) < BYTES / 8


def test_what_is_kept_is_counted_with_an_idle_thread_beside_it(of_two: None) -> None:
    kept: list[torch.Tensor] = []
    over = threading.Event()
    idle = threading.Thread(target=over.wait)
    idle.start()
    began = time.monotonic()
    found = held.bytes_kept(lambda: lambda: kept.append(torch.ones(BYTES // 4)))
    over.set()
    idle.join()
    assert found == pytest.approx(BYTES, rel=0.01)
    assert time.monotonic() - began < held.PATIENCE
