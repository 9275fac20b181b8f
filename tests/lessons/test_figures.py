"""Figures and tables say what they show, in the picture and in words, from any record a job can give."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from figure_helpers import texts

from labkit.record import Collective, Span
from labkit.show import (
    Table,
    draw_matmul_split,
    draw_parallel_mlp,
    draw_timeline,
    draw_traffic,
    prediction,
)


@dataclass
class Record:
    """What a figure needs of a job."""

    ranks: int
    collectives: list[Collective] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def timeline(self) -> list[Span]:
        calls = [Span(c.rank, c.op, "communication", c.start, c.end or c.start) for c in self.collectives]
        return sorted([*self.spans, *calls], key=lambda span: span.start)


def call(rank: int, order: int, start: float, end: float | None, num_bytes: int = 2048) -> Collective:
    shape = (num_bytes // 4,)
    return Collective(
        rank, "all_reduce", num_bytes, shape, "float32", (0, 1), None, order, start, end, "python", "cell:1"
    )


def two_ranks(calls: int = 2) -> Record:
    collectives = [call(r, k, 0.1 * k + 0.01, 0.1 * k + 0.05) for r in range(2) for k in range(calls)]
    return Record(2, collectives, [Span(r, "forward", "forward", 0.0, 0.1 * calls) for r in range(2)])


def test_a_timeline_has_a_row_a_rank_and_names_each_call() -> None:
    picture = draw_timeline(two_ranks())
    assert {"rank 0", "rank 1"} <= set(texts(picture))
    assert texts(picture).count("all_reduce, 2.00 KiB") == 2  # once a call, above the first rank
    bars = [(bar.get_x(), bar.get_width()) for bar in picture.figure.axes[0].patches]
    assert (pytest.approx(10), pytest.approx(40)) in bars  # milliseconds
    assert "Regions: forward" in picture.alt


def test_a_call_that_is_longer_than_the_work_in_front_of_it_does_not_hide_it() -> None:
    """As on a busy machine, where a gather that was hidden becomes the longer of the two."""
    record = Record(1, [call(0, 0, 0.0, 1.0)], [Span(0, "forward", "forward", 0.4, 0.6)])
    work, communication = draw_timeline(record).figure.axes[0].patches
    assert work.get_y() + work.get_height() <= communication.get_y()


def test_regions_are_named_in_their_bars_or_above_them() -> None:
    """Above where there is no room, and where the bar holds another one: each name once."""
    spans = [
        Span(0, "the whole step", "compute", 0.0, 1.0),
        Span(0, "load", "compute", 0.1, 0.5),
        *(Span(0, "tiny", "optimizer", start, start + 0.01) for start in (0.6, 0.8)),
    ]
    picture = draw_timeline(Record(1, spans=spans))
    named = {
        text.get_text(): text.get_position()[1]
        for text in picture.figure.axes[0].texts
        if text.get_text() in ("the whole step", "load", "tiny")
    }
    assert texts(picture).count("tiny") == 1
    assert {name for name, height in named.items() if height < -0.5} == {"the whole step", "tiny"}
    assert abs(named["load"]) < 0.4  # in the row of rank 0


def test_a_name_longer_than_the_figure_is_cut_and_leaves_it_as_it_is() -> None:
    """It hung out on the left, and the axes shrank until it was on the page; words for readers have all."""
    widths = []
    for name in ("load", "load " * 60):
        picture = draw_timeline(Record(2, spans=[Span(r, name, "compute", 0.0, r + 0.01) for r in range(2)]))
        picture.png()
        widths.append(picture.figure.axes[0].get_position().width)
        assert name in picture.alt
    assert widths[1] == pytest.approx(widths[0], rel=0.01)


def test_a_timeline_alone_is_refused_with_what_to_pass() -> None:
    with pytest.raises(TypeError, match=r"found a list: pass the job itself, draw_timeline\(job\)"):
        draw_timeline(two_ranks().timeline)  # type: ignore[arg-type]


def test_a_dollar_in_a_name_begins_no_formula() -> None:
    spans = [Span(0, name, name, 0.1 * at, 0.1 * at + 0.1) for at, name in enumerate(("$x_{$", "a $ b$"))]
    picture = draw_timeline(Record(1, [], spans))
    assert "$x_{$" in texts(picture)
    assert picture.png()


def test_labels_of_calls_do_not_overlap_and_stay_inside() -> None:
    picture = draw_timeline(two_ranks(calls=12))
    picture.png()  # places every text
    figure = picture.figure
    boxes = [t.get_window_extent() for t in figure.axes[0].texts if t.get_text().startswith("all_reduce")]
    assert len(boxes) == 12
    overlaps = [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a.overlaps(b)]
    assert overlaps == []
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_a_call_that_nobody_waited_for_is_still_drawn() -> None:
    picture = draw_timeline(Record(1, [call(0, 0, 0.0, None), call(0, 1, 1.0, 1.5)]))
    assert min(bar.get_width() for bar in picture.figure.axes[0].patches) > 0


def test_nothing_recorded_is_said() -> None:
    assert "No communication" in draw_timeline(Record(2)).alt
    traffic = draw_traffic(Record(2))
    assert "rank 1: nothing" in traffic.alt
    assert texts(traffic).count(" nothing") == 2


def test_a_guess_is_drawn_once_it_is_made() -> None:
    assert " your guess" not in texts(draw_timeline(two_ranks(), guess_ms=...))
    assert " your guess" in texts(draw_timeline(two_ranks(), guess_ms=50))


def test_a_guess_far_from_what_happened_is_told_and_leaves_the_figure_as_it_is() -> None:
    """It was written where its line would be, and the axes shrank until that was on the page."""
    usual = draw_timeline(two_ranks())
    for guess, told in ((20_000, "your guess: 20,000 ms →"), (-300, "← your guess: -300 ms")):
        picture = draw_timeline(two_ranks(), guess_ms=guess)
        (axes,) = picture.figure.axes
        assert axes.get_title(loc="right") == told
        assert " your guess" not in texts(picture)
        assert axes.get_xlim() == usual.figure.axes[0].get_xlim()


def test_traffic_is_as_long_as_the_bytes() -> None:
    picture = draw_traffic(two_ranks())
    assert [bar.get_width() for bar in picture.figure.axes[0].patches] == [2048] * 4
    assert "rank 0: all_reduce of 2.00 KiB, all_reduce of 2.00 KiB" in picture.alt


def test_blocks_carry_the_parts_and_refuse_what_cannot_be_drawn() -> None:
    assert {"X", "A₀", "A₂", "XA₂"} <= set(texts(draw_matmul_split("columns", ranks=3)))
    assert {"X₁", "A₁", "X₁A₁"} <= set(texts(draw_matmul_split("rows", ranks=2)))
    assert "all-reduce" in texts(draw_parallel_mlp(2, show_backward=True))
    with pytest.raises(ValueError, match="2 to 4 ranks, got 9"):
        draw_matmul_split("rows", ranks=9)
    with pytest.raises(ValueError, match="'columns' or 'rows', got 'diagonal'"):
        draw_matmul_split("diagonal")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 to 4 ranks, got 1"):
        draw_parallel_mlp(1)


def test_a_picture_is_an_image_with_words() -> None:
    shown = draw_parallel_mlp(2)._repr_html_()
    assert '<img class="labkit-drawn" alt="The MLP on 2 ranks' in shown
    assert "data:image/png;base64," in shown


def test_tables_escape_and_align() -> None:
    table = Table(["name", "n"], [["<b>", 1234567], ["x", 0.5]], caption="sizes")
    assert "&lt;b&gt;" in table._repr_html_()
    assert repr(table).splitlines() == ["sizes", "name  n        ", "<b>   1,234,567", "x     0.5      "]
    with pytest.raises(ValueError, match="expected 2 values in each row, found 1"):
        Table(["a", "b"], [[1]])


def test_a_prediction_not_made_asks_for_one() -> None:
    assert "no guess yet" in repr(prediction("bytes", ..., 8))
    assert "no guess yet" not in repr(prediction("bytes", 7, 8))


def test_what_was_found_is_covered_until_there_is_a_guess() -> None:
    """Else one who runs all cells reads the answer before the question."""
    covered, seen = prediction("bytes", ..., 8642), prediction("bytes", 7, 8642)
    assert "8,642" not in repr(covered)
    assert "<details><summary>guess first, or look</summary>8,642</details>" in covered._repr_html_()
    assert "8,642" in repr(seen)
    assert "<details>" not in seen._repr_html_()
