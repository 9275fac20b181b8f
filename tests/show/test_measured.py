"""What lessons show of a real GPU: it is there, says what it was measured on, and can be drawn."""

from __future__ import annotations

import pytest

from labkit.show.measured import RECORDED, measured_on_a_gpu
from labkit.show.utilisation import draw_utilisation, working_share

NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_measurement_says_where_it_was_made(name: str) -> None:
    """The file's name ends with the GPU's, so that another one's does not take its place."""
    measured = measured_on_a_gpu(name)
    assert name.rpartition("_")[2] in measured.gpu.lower()
    assert measured.gpu in measured.about
    assert measured.date in measured.about
    for title in measured.found.get("timelines", {}):
        stretches = measured.timeline(title)
        assert all(0 <= s.start <= s.end for s in stretches)
        assert f"cuda:0 works {working_share(stretches, 0):.0%}" in draw_utilisation({title: stretches}).alt


def test_an_unknown_one_is_told_with_those_there_are() -> None:
    with pytest.raises(LookupError, match=rf"\({', '.join(NAMES)}\), found 'streaming_z80'"):
        measured_on_a_gpu("streaming_z80")
