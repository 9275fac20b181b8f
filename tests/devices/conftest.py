"""Four stand-in devices, for tests that need them open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labkit import devices

MIB = 2**20


@pytest.fixture
def gpus() -> Iterator[devices.StandIns]:
    with devices.stand_in(4, bytes_each=8 * MIB) as opened:
        yield opened
