"""The figures of lesson 02 show what was measured, in the picture and in words."""

from __future__ import annotations

import pytest
from matplotlib.text import Text

from labkit.devices import Busy
from labkit.show.offload import draw_resident_peaks
from labkit.show.placement import draw_placement
from labkit.show.style import Picture
from labkit.show.utilisation import draw_utilisation, working_share

MIB = 2**20
STAIRS = [
    Busy(0, 0, "a", "forward", 1.0, 1.1),
    Busy(1, 0, "b", "forward", 1.1, 1.2),
    Busy(1, 0, "b", "backward", 1.2, 1.4),
    Busy(0, 0, "a", "backward", 1.4, 1.6),
]


def texts(picture: Picture) -> list[str]:
    found = [text.get_text() for text in picture.figure.findobj(Text)]
    return [text for text in found if text]


def test_a_placement_has_a_block_a_layer_and_the_line_of_a_full_device() -> None:
    kinds = ["embedding", "block", "block", "head"]
    costs = [4 * MIB, MIB, MIB, 3 * MIB]
    picture = draw_placement(
        {"by count": [[0, 1], [2, 3]], "by cost": [[0], [1, 2, 3]]}, costs, kinds, 4 * MIB
    )
    widths = [[bar.get_width() for bar in axes.patches] for axes in picture.figure.axes]
    assert widths == [[4, 1, 1, 3], [4, 1, 1, 3]]
    assert {"layers 0-1", "layers 2-3", "layer 0", "layers 1-3", "by count", "by cost"} <= set(texts(picture))
    assert "by cost: cuda:0 4.00 MiB, cuda:1 5.00 MiB" in picture.alt


def test_layers_that_are_no_run_are_named_one_by_one() -> None:
    """As of a cut that is not right yet: 0-2 would say that layer 1 is there too."""
    found = texts(draw_placement({"a cut": [[0, 2], [1, 1]]}, [MIB] * 3, ["block"] * 3))
    assert {"layers 0, 2", "layers 1, 1"} <= set(found)


def test_a_layer_that_is_not_there_is_told_with_its_device() -> None:
    with pytest.raises(ValueError, match="your cut, cuda:1: expected layers of 0 to 2, found 3"):
        draw_placement({"your cut": [[0, 1], [2, 3]]}, [MIB] * 3, ["block"] * 3)


def test_a_device_without_layers_is_drawn_empty() -> None:
    picture = draw_placement({"few": [[0], []]}, [MIB], ["block"])
    assert "cuda:1 0 B" in picture.alt


def test_utilisation_is_the_share_of_time_a_device_works() -> None:
    picture = draw_utilisation({"two devices": STAIRS}, guess_ms=300)
    assert working_share(STAIRS, 0) == pytest.approx(0.5)
    assert texts(picture).count("50%") == 2
    assert "600 ms, cuda:0 works 50%, cuda:1 works 50%" in picture.alt
    bars = [(bar.get_x(), bar.get_width()) for bar in picture.figure.axes[0].patches]
    assert (pytest.approx(400), pytest.approx(200)) in bars


def test_a_guess_beyond_the_end_is_told_where_its_line_would_not_be_seen() -> None:
    (axes,) = draw_utilisation({"two devices": STAIRS}, guess_ms=300).figure.axes
    assert axes.lines[0].get_xdata() == [300, 300]
    (axes,) = draw_utilisation({"two devices": STAIRS}, guess_ms=900).figure.axes
    assert axes.get_title(loc="right") == "your guess: 900 ms →"


def test_copies_on_their_own_stream_have_their_own_row() -> None:
    works = [Busy(0, 1, "copy", "communication", 0.0, 0.2), Busy(0, 0, "layer", "forward", 0.1, 0.4)]
    picture = draw_utilisation({"streaming": works})
    assert {"cuda:0", "cuda:0, copies"} <= set(texts(picture))
    assert working_share(works, 0) == pytest.approx(0.75)


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(ValueError, match="found none"):
        draw_utilisation({"empty": []})


def test_peaks_are_drawn_in_mib_with_the_guess_beside_them() -> None:
    peaks = {"training step": {0: 3 * MIB, 4: 8 * MIB}, "inference": {0: 2 * MIB, 4: 6 * MIB}}
    picture = draw_resident_peaks(peaks, whole=24 * MIB, guess=(4, 11 * MIB))
    lines = [list(line.get_ydata()) for line in picture.figure.axes[0].lines]
    assert [3, 8] in lines
    assert [2, 6] in lines
    assert [11] in lines
    assert "your guess" in texts(picture)
    assert "your guess" not in texts(draw_resident_peaks(peaks, guess=(4, ...)))
    assert "training step: 3.00 MiB with 0 resident" in picture.alt
