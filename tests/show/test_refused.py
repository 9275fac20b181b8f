"""What a figure cannot draw is told in words about what was handed over, not by an error from inside."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from labkit.record import Collective, Span
from labkit.show import (
    breakdown,
    checkpoints,
    collectives,
    context,
    cost,
    experts,
    grid,
    offload,
    placement,
    ring,
    schedule,
    sharding,
    timeline,
    traffic,
    utilisation,
    zero,
)
from labkit.show.measured import Stretch
from labkit.theory.schedule import Action, Simulation, simulate


@dataclass(frozen=True)
class OneRank:
    """A job of one rank that computed for a second."""

    ranks: int = 1
    collectives: tuple[Collective, ...] = ()
    timeline: tuple[Span, ...] = (Span(0, "step", "step", 0.0, 1.0),)

    @property
    def spans(self) -> tuple[Span, ...]:
        """What is in the timeline."""
        return self.timeline


EMPTY: list[Callable[[], object]] = [
    lambda: checkpoints.draw_held({}, {}),
    lambda: checkpoints.draw_held({"plan": []}, {"plan": 0}),
    lambda: checkpoints.draw_peaks({}, {}, layers=4),
    lambda: checkpoints.draw_growth({"plan": {}}, "plan"),
    lambda: collectives.draw_collectives([]),
    lambda: collectives.draw_collectives([{}]),
    lambda: context.draw_pairs([]),
    lambda: cost.draw_times({}),
    lambda: cost.draw_bytes({}, "bytes"),
    lambda: cost.draw_bytes_sent({}),
    lambda: experts.draw_visits([], []),
    lambda: experts.draw_dispatch([]),
    lambda: grid.draw_groups({}, 8),
    lambda: grid.draw_terms({}),
    lambda: grid.draw_over_nodes({}, []),
    lambda: offload.draw_resident_peaks({}),
    lambda: offload.draw_resident_peaks({"title": {}}),
    lambda: placement.draw_placement({}, [], []),
    lambda: placement.draw_placement({"cut": []}, [1.0], ["block"]),
    lambda: schedule.draw_schedule({}),
    lambda: schedule.draw_in_flight({}),
    lambda: schedule.draw_bars({}, {}, "title"),
    lambda: sharding.draw_holdings({}, {}),
    lambda: sharding.draw_sent({}, {}),
    lambda: sharding.draw_losses([], [], "ranks"),
    lambda: utilisation.draw_utilisation({}),
    lambda: utilisation.draw_utilisation({"title": []}),
    lambda: zero.draw_flat_layout(4, [], []),
    lambda: zero.draw_over_a_step({}, {}),
    lambda: zero.draw_over_a_step({"plan": []}, {"plan": 1}),
]


@pytest.mark.parametrize("draw", EMPTY)
def test_nothing_to_draw(draw: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"expected at least one .+ to draw, found none"):
        draw()


@pytest.mark.parametrize(
    ("draw", "call"),
    [
        (timeline.draw_timeline, "draw_timeline(job)"),
        (traffic.draw_traffic, "draw_traffic(job)"),
        (ring.draw_steps, "draw_steps(job)"),
        (breakdown.draw_breakdown, "draw_breakdown(job)"),
        (lambda job: cost.draw_bytes_sent({"ring": job}), "draw_bytes_sent({"),
        (lambda job: schedule.draw_measured(job, simulate([[]])), "draw_measured(job, simulation)"),
    ],
)
def test_the_results_of_a_job_are_no_job(draw: Callable[[object], object], call: str) -> None:
    with pytest.raises(TypeError, match=rf"found a list: pass the job itself, {re.escape(call)}"):
        draw([1, 2])


@pytest.mark.parametrize("draw", [schedule.draw_schedule, schedule.draw_in_flight])
def test_a_schedule_is_played_before_it_is_drawn(draw: Callable[[object], object]) -> None:
    lists = [[Action("forward", 0, 0), Action("backward", 0, 0)]]
    with pytest.raises(TypeError, match=r"expected 1F1B played through, as simulate\(schedule\).*a list"):
        draw({"1F1B": lists})
    assert isinstance(simulate(lists), Simulation)
    draw({"1F1B": simulate(lists)})


@pytest.mark.parametrize("terms", [None, {"compute": 1.0}])
def test_a_plan_has_four_terms(terms: dict[str, float] | None) -> None:
    with pytest.raises(ValueError, match="dp 8: expected seconds of compute, tensor, bubble, data"):
        grid.draw_terms({"dp 8": terms})  # type: ignore[dict-item]


def test_numbers_that_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="visits and a rank for each expert, got 2 and 1"):
        experts.draw_visits([1, 2], [0])
    with pytest.raises(ValueError, match="divides the heads, got 3 heads, 4 ranks"):
        context.draw_exchange(heads=3, ranks=4)
    with pytest.raises(ValueError, match=r"warm_up.*0 or more, got -1"):
        breakdown.shares_of_ranks(OneRank(), "step", warm_up=-1)
    for ranks in (0, 9):
        with pytest.raises(ValueError, match=f"drawn for 1 to 8 ranks, got {ranks}"):
            zero.draw_stages(ranks)


def test_a_loss_that_is_no_number_is_not_an_equal_one() -> None:
    assert "differ by at most nan" in sharding.draw_losses([1.0, math.nan], [1.0, 2.0], "ranks").alt


def test_a_difference_above_1_is_in_the_picture() -> None:
    _, apart = sharding.draw_losses([1.0, 1.0], [1.0, 9.0], "ranks").figure.axes
    assert apart.get_ylim()[1] > 8


def test_work_that_takes_no_time() -> None:
    assert utilisation.draw_utilisation({"title": [Stretch(0, "compute", 1.0, 1.0)]}).alt.endswith(
        "works 0%."
    )


def test_names_below_many_bars_leave_room_for_each_other() -> None:
    picture = experts.draw_visits([1] * 64, [expert // 8 for expert in range(64)])
    assert [label.get_text().split("\n")[0] for label in picture.figure.axes[0].get_xticklabels()] == [
        str(4 * number) for number in range(16)
    ]


def test_a_legend_of_many_ranks_stays_in_the_picture() -> None:
    picture = sharding.draw_holdings({"rows": [[rank] for rank in range(16)]}, {"rows": 16})
    picture.png()
    box = picture.figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= picture.figure.bbox.width


def test_a_guess_in_bytes_leaves_the_measurements_in_sight() -> None:
    """Of a peak in MiB: written in bytes it is a million times as much."""
    peaks, mib = {"training": {0: 3 * 2**20, 4: 7 * 2**20}}, 2.0**20
    near, far = (offload.draw_resident_peaks(peaks, guess=(4, guess * mib)) for guess in (8, 8e6))
    assert near.figure.axes[0].get_title(loc="right") == ""
    assert far.figure.axes[0].get_title(loc="right") == "your guess: 8e+06 MiB ↑"
    assert far.figure.axes[0].get_ylim()[1] < 10


@pytest.mark.parametrize(("guess", "drawn"), [(2, True), (2.0, True), (0, False), (..., False)])
def test_a_guess_of_segments_is_a_line(guess: object, drawn: bool) -> None:
    (axes,) = checkpoints.draw_peaks({1: 5, 2: 4}, {1: 5, 2: 3}, layers=4, guess=guess).figure.axes
    assert ("your guess" in [line.get_label() for line in axes.get_lines()]) is drawn
