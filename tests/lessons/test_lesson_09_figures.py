"""What lesson 09 draws: groups of ranks on their nodes, the terms of a step, something over nodes."""

from __future__ import annotations

import numpy as np
from figure_helpers import texts
from matplotlib.patches import Rectangle

from labkit.show.grid import draw_groups, draw_over_nodes, draw_terms

STEPS = {
    "one": {"compute": 2.0, "tensor": 0.5, "bubble": 0.25, "data": 0.25},
    "other": {"compute": 1.0, "tensor": 0.0, "bubble": 0.0, "data": 3.0},
}


def test_ranks_of_one_group_have_one_letter_and_colour() -> None:
    picture = draw_groups({"dp": [[0, 2], [1, 3]], "tp": [[0, 1], [2, 3]]}, gpus_per_node=2)
    assert {"groups along dp", "groups along tp", "0\nA", "2\nA", "1\nB", "2\nB"} <= set(texts(picture))
    first = picture.figure.axes[0]
    boxes = [p for p in first.patches if isinstance(p, Rectangle) and p.get_width() == 0.9]
    colours = [box.get_facecolor() for box in boxes]
    assert colours[0] == colours[1] != colours[2] == colours[3], "drawn group by group"
    assert "along dp: [[0, 2], [1, 3]]" in picture.alt


def test_terms_are_stacked_to_the_whole_step() -> None:
    picture = draw_terms(STEPS)
    bars = [p for p in picture.figure.axes[0].patches if isinstance(p, Rectangle)]
    assert max(bar.get_x() + bar.get_width() for bar in bars) == 4.0
    assert {" 3 s", " 4 s", "one", "other"} <= set(texts(picture))
    assert "bubble 0.25 s" in picture.alt


def test_lines_may_end_before_the_last_number_of_nodes() -> None:
    picture = draw_over_nodes({"a": [400.0, 100.0, 30.0], "b": [200.0, 50.0]}, [1, 2, 4])
    assert [np.asarray(line.get_xdata()).size for line in picture.figure.axes[0].lines] == [3, 2]
    assert "a: 400, 100, 30; b: 200, 50" in picture.alt
