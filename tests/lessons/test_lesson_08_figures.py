"""What lesson 08 draws: who holds which share, where the flat cut falls, and a rank's bytes over a step."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from labkit.show.style import PALE, STATES, rank_color
from labkit.show.zero import MIB, ROWS, draw_flat_layout, draw_over_a_step, draw_stages
from labkit.theory.sharding import pieces_of_ranks


def boxes(axes: Axes, color: str) -> list[tuple[float, float]]:
    """Left edge and width of each box of a color."""
    return [
        (patch.get_x(), patch.get_width())
        for patch in axes.patches
        if isinstance(patch, Rectangle) and patch.get_facecolor() == to_rgba(color)
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_stage_makes_one_row_more_narrow(ranks: int) -> None:
    """Optimizer from stage 1 on, gradients from 2, weights from 3 (ZeRO, section 5)."""
    picture = draw_stages(ranks)
    for stage, axes in enumerate(picture.figure.axes):
        for part, sharded_from in zip(ROWS, (3, 2, 1), strict=True):
            found = boxes(axes, STATES[part])
            shares = ranks if stage >= sharded_from else 1
            assert [width for _, width in found] == [pytest.approx(0.9 / shares)] * ranks
            places = {round(left - rank, 6) for rank, (left, _) in enumerate(found)}
            assert len(places) == shares, "shares of a whole, each at a place of its own"
    assert f"over {ranks} ranks" in picture.alt


def test_shares_together_are_the_whole_box() -> None:
    axes = draw_stages(4).figure.axes[3]
    shares = sorted((left - rank, width) for rank, (left, width) in enumerate(boxes(axes, STATES["weights"])))
    ends = [left + width for left, width in shares]
    assert [left for left, _ in shares[1:]] == pytest.approx(ends[:-1])
    assert (shares[0][0], ends[-1]) == (0, pytest.approx(0.9))
    assert len(boxes(axes, PALE)) == 4 * len(ROWS)


def test_a_flat_layout_shows_who_owns_what_and_what_is_padding() -> None:
    numels = [30, 6, 18, 3]
    size, pieces = pieces_of_ranks(numels, 4)
    picture = draw_flat_layout(size, pieces, ["up", "bias", "down", "last"])
    (axes,) = picture.figure.axes
    for rank in range(4):
        owned = sum(stop - start for _, start, stop in pieces[rank])
        assert (rank * size, owned) in boxes(axes, rank_color(rank))
    white = [width for _, width in boxes(axes, "white")]
    assert sum(white) == 4 * size - sum(numels)
    cuts = [line.get_xdata()[0] for line in axes.lines]
    assert cuts == [size, 2 * size, 3 * size]
    assert f"Shards of {size} elements" in picture.alt
    assert "rank 3: 12" in picture.alt


def test_a_parameter_that_spans_shards_is_one_stretch() -> None:
    (axes,) = draw_flat_layout(*pieces_of_ranks([10, 2], 4), ["wide", "small"]).figure.axes
    above = [
        (p.get_x(), p.get_width()) for p in axes.patches if isinstance(p, Rectangle) and p.get_y() == 1.0
    ]
    assert above == [(0, 10), (10, 2)]


def test_a_piece_of_no_parameter_is_told_with_its_rank() -> None:
    with pytest.raises(ValueError, match="pieces of rank 1: expected parameters of 0 to 1, found 2"):
        draw_flat_layout(4, [[(0, 0, 4)], [(1, 0, 3), (2, 0, 1)]], ["a", "b"])


def test_bytes_over_a_step_stand_beside_what_was_predicted() -> None:
    held = {"data parallel": [MIB, 3 * MIB, 2 * MIB], "stage 2": [MIB, 2 * MIB, MIB // 2, MIB]}
    picture = draw_over_a_step(held, {"data parallel": 3 * MIB, "stage 2": 3 * MIB // 2})
    (axes,) = picture.figure.axes
    curves = {line.get_label(): line for line in axes.lines if not str(line.get_label()).startswith("_")}
    assert list(curves["stage 2"].get_ydata()) == [1, 2, 0.5, 1]
    assert list(curves["stage 2"].get_xdata()) == [25, 50, 75, 100]
    dotted = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == ":"]
    assert dotted == [3, 1.5]
    assert "stage 2: at most 2.00 MiB, predicted 1.50 MiB" in picture.alt
    assert "MiB" in axes.get_ylabel()


def test_a_plan_more_than_there_are_styles_is_drawn_too() -> None:
    plans = {f"plan {number}": [number, 2 * number] for number in range(1, 7)}
    legend = draw_over_a_step(plans, dict.fromkeys(plans, 3)).figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == list(plans)


def test_pictures_can_be_printed() -> None:
    layout = draw_flat_layout(*pieces_of_ranks([5, 1], 3), ["a", "b"])
    for picture in (draw_stages(2), layout, draw_over_a_step({"a": [1, 2]}, {"a": 2})):
        assert picture.png(dpi=40)[:4] == b"\x89PNG"
