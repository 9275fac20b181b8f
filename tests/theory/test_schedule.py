"""Schedules played through: against closed forms, published numbers, and a slower simulator."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textbook_schedules import gpipe, interleaved, one_f_one_b

from labkit.theory.schedule import (
    Action,
    Costs,
    Schedule,
    ScheduleDeadlock,
    ScheduleError,
    check_schedule,
    dry_run,
    read_actions,
    simulate,
    zb_h1,
    zb_h2,
)

SIZES = [(1, 1), (1, 5), (2, 3), (4, 1), (4, 3), (4, 4), (4, 9), (7, 16)]


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("backward", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_makespan_and_bubble_are_the_closed_forms(make, p, m, backward):
    """(m+p-1)(t_f+t_b); (p-1)/m to ideal (SC21 2.2.1), (p-1)/(m+p-1) of the total (GPipe 2.3)."""
    played = simulate(make(p, m), Costs(1.5, backward))
    assert played.makespan == pytest.approx((m + p - 1) * (1.5 + backward))
    assert played.bubble_over_ideal == pytest.approx((p - 1) / m)
    assert played.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_in_flight(p, m):
    """GPipe holds m micro-batches; 1F1B min(m, p-r) on stage r, whatever the backward costs."""
    assert [simulate(gpipe(p, m)).peak_in_flight(r) for r in range(p)] == [m] * p
    for backward in (0.5, 1.0, 2.0, 5.0):
        played = simulate(one_f_one_b(p, m), Costs(1.0, backward))
        assert [played.peak_in_flight(r) for r in range(p)] == [min(m, p - r) for r in range(p)]


# The Ultra-Scale Playbook's bars for p = 8: bubble over ideal, (p-1)/(vm).
PUBLISHED = {1: 7, 2: 3.5, 4: 1.75, 8: 0.875, 16: 0.4375, 32: 0.21875}
PUBLISHED_INTERLEAVED = {
    8: {2: 0.4375, 4: 0.21875, 8: 0.109375},
    16: {2: 0.21875, 4: 0.109375, 8: 0.0546875},
    32: {2: 0.109375, 4: 0.0546875, 8: 0.02734375},
}


@pytest.mark.parametrize(("m", "bar"), PUBLISHED.items())
def test_the_published_bars(m, bar):
    assert simulate(one_f_one_b(8, m)).bubble_over_ideal == pytest.approx(bar)


@pytest.mark.parametrize(
    ("m", "v", "bar"), [(m, v, bar) for m, of_m in PUBLISHED_INTERLEAVED.items() for v, bar in of_m.items()]
)
def test_the_published_bars_of_interleaved_stages(m, v, bar):
    played = simulate(interleaved(8, m, v), Costs(1 / v, 2 / v))
    assert played.bubble_over_ideal == pytest.approx(bar)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 4, 3), (4, 16, 2)])
def test_the_first_rank_of_interleaved_holds_what_korthikanti_says(p, m, v):
    """L(1 + (p-1)/(pv)) layers' worth on the first rank (Korthikanti 2022, 4.2.3), a chunk being L/(pv)."""
    played = simulate(interleaved(p, m, v), Costs(1 / v, 2 / v))
    assert played.peak_in_flight(0) / (p * v) == pytest.approx(min(1 + (p - 1) / (p * v), m / p))


@pytest.mark.parametrize("costs", [(1.0, 1.0, 1.0), (1.0, 1.2, 0.9), (1.0, 1.0, 0.5)])
@pytest.mark.parametrize("p", [2, 4, 6])
def test_zero_bubble_is_its_papers_table_2(p, costs):
    """Bubble on the first rank and peak memory of ZB-H1 and ZB-H2, and of 1F1B beside them."""
    forward, inputs, weights = costs
    asked = Costs(forward, inputs + weights, weight_backward=weights)
    h1, h2, plain = (simulate(s(p, 4 * p), asked) for s in (zb_h1, zb_h2, one_f_one_b))
    assert plain.idle_inside(0) == pytest.approx((p - 1) * (forward + inputs + weights))
    assert h1.idle_inside(0) == pytest.approx((p - 1) * (forward + inputs - weights))
    assert h2.idle_inside(0) == pytest.approx((p - 1) * (forward + inputs - 2 * weights))
    peaks = [
        [played.peak_activation(r, 1.0, kept_for_weights=1.0) for r in range(p)] for played in (plain, h1, h2)
    ]
    assert [max(row) for row in peaks] == [p, p, 2 * p - 1]


def test_a_message_takes_time_unless_it_stays_on_its_rank():
    """Sends add 2(p-1)c to GPipe's makespan: the first forward's way down and the last backward's way up."""
    assert simulate(gpipe(4, 8), Costs(1, 2, send=0.25)).makespan == pytest.approx(11 * 3 + 6 * 0.25)
    one_rank = [[*read_actions("F0", 0), *read_actions("F0 B0", 1), *read_actions("B0", 0)]]
    assert simulate(one_rank, Costs(1, 2, send=5)).makespan == 6


def test_uneven_stages_are_as_slow_as_the_slowest():
    """The slow stage never pauses after its first input: m passes, and stage 0 before and after."""
    played = simulate(one_f_one_b(3, 6), Costs([1, 3, 1], [2, 6, 2]))
    assert played.makespan == pytest.approx(1 + 6 * 9 + 2)
    assert played.busy == pytest.approx([18, 54, 18])


def test_peak_activation_counts_each_stage_at_its_own_size():
    played = simulate(interleaved(2, 4, 2))
    assert played.peak_activation(1, [1, 10, 100, 1000]) == 2 * 10 + 1000
    assert played.peak_activation(0, 1) == played.peak_in_flight(0)


def test_in_flight_over_time_is_a_step_function():
    assert simulate([read_actions("F0 F1 B1 B0", 0)], Costs(1, 2)).in_flight(0) == [
        (0, 0),
        (0, 1),
        (1, 2),
        (4, 1),
        (6, 0),
    ]


@given(st.integers(1, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_valid_schedule_takes_as_long_as_a_plain_simulator_says(p, m, chance):
    """Lists drawn by running actions in a random possible order; costs random for each stage."""
    schedule = _random_schedule(p, m, chance)
    costs = Costs(*([chance.randint(1, 9) for _ in range(p)] for _ in range(3)))
    played = simulate(schedule, costs)
    expected = _plain_ends(schedule, costs)
    assert {e.action: e.end for e in played.events()} == expected
    assert played.makespan == max(expected.values())
    check_schedule(schedule, p, m)


def _random_schedule(p: int, m: int, chance: random.Random) -> Schedule:
    left = {Action(k, s, i) for k in ("forward", "backward") for s in range(p) for i in range(m)}
    lists: list[list[Action]] = [[] for _ in range(p)]
    while left:
        action = chance.choice(sorted(a for a in left if not _needs(a, p) & left))
        left.remove(action)
        lists[action.stage].append(action)
    return lists


def _needs(action: Action, p: int) -> set[Action]:
    kind, stage, i = action
    if kind == "forward":
        return {Action("forward", stage - 1, i)} if stage else set()
    return {Action("forward", stage, i)} | ({Action("backward", stage + 1, i)} if stage + 1 < p else set())


def _plain_ends(schedule: Schedule, costs: Costs) -> dict[Action, float]:
    """Ends by repeated sweeps over the lists until nothing is left: slow, and written another way."""
    ends: dict[Action, float] = {}
    queues, clocks = [list(actions) for actions in schedule], [0.0] * len(schedule)
    while any(queues):
        for rank, queue in enumerate(queues):
            if queue and _needs(queue[0], len(schedule)) <= set(ends):
                action = queue.pop(0)
                times = {"forward": costs.forward, "backward": costs.backward}[action.kind]
                arrivals = [
                    ends[n] + (costs.send[n.stage] if n.stage != action.stage else 0)
                    for n in _needs(action, len(schedule))
                ]
                clocks[rank] = ends[action] = max([clocks[rank], *arrivals]) + times[action.stage]
    return ends


def test_a_deadlock_names_every_blocked_rank_and_its_action():
    """Rank 1 wants gradient 0 before it has done forward 0; nobody gets past that."""
    schedule = [
        read_actions("F0 F1 B0 B1", 0),
        read_actions("B0 F0 F1 B1", 1),
        read_actions("F0 B0 F1 B1", 2),
    ]
    blocked = dry_run(schedule)
    assert [(b.rank, b.action, b.waits_for) for b in blocked] == [
        (0, Action("backward", 0, 0), Action("backward", 1, 0)),
        (1, Action("backward", 1, 0), Action("forward", 1, 0)),
        (2, Action("forward", 2, 0), Action("forward", 1, 0)),
    ]
    assert str(blocked[1]) == (
        "rank 1 is blocked at B0 on stage 1: it waits for F0 on stage 1, "
        "which stands further down in its own list"
    )
    with pytest.raises(ScheduleDeadlock, match="rank 2 is blocked at F0 on stage 2"):
        simulate(schedule)


def test_opposite_orders_on_two_ranks_deadlock():
    """Each waits for what the other would do next."""
    schedule = [read_actions("F0 F1 B0 B1", 0), read_actions("F1 B1 F0 B0", 1)]
    assert dry_run(schedule) == []  # a message waits in the mail, so this order is only slower
    schedule = [read_actions("F0 B0 F1 B1", 0), read_actions("F0 F1 B1 B0", 1)]
    assert [str(b.action) for b in dry_run(schedule)] == ["B0 on stage 0", "F1 on stage 1"]


def test_a_receive_that_never_comes():
    schedule = [read_actions("F0 B0", 0), read_actions("F0 B0 F1 B1", 1)]
    (blocked,) = dry_run(schedule)
    assert str(blocked) == (
        "rank 1 is blocked at F1 on stage 1: it waits for F1 on stage 0, which is in no rank's list"
    )


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        (["F0 F1 B0", "F0 F1 B0 B1"], "B1 on stage 0 is missing"),
        (["F0 B0 B1", "F0 F1 B0 B1"], "F1 on stage 0 is missing"),
        (["F0 F1 I0 I1 W0", "F0 F1 B0 B1"], "W1 on stage 0 is missing"),
        (["F0 F1 F2 B0 B1 B2", "F0 F1 B0 B1"], "F2 on stage 0: there is no micro-batch 2, the last is 1"),
        (["F0 F1 F1 B0 B1", "F0 F1 B0 B1"], "rank 0 does F1 on stage 0 2 times"),
        (["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1"], "F0 on stage 2: there is no stage 2, the last is 1"),
        (["F0 F1 B0 B1"], "F0 on stage 1 is missing"),
        (["", ""], "F0 on stage 0 is missing"),
        (["B0 F0 F1 B1", "F0 F1 B0 B1"], "rank 0 is blocked at B0 on stage 0"),
    ],
)
def test_a_bad_schedule_is_told_by_action_stage_and_micro_batch(lists, says):
    with pytest.raises(ScheduleError, match=says):
        check_schedule([read_actions(text, stage) for stage, text in enumerate(lists)], 2, 2)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        3,
        [None],
        [("forward", 0)],
        [("sideways", 0, 0)],
        [("forward", -1, 0)],
        [("forward", 0, 1.5)],
        [("forward", True, 0)],
    ],
)
def test_what_is_not_a_list_of_actions_is_refused(broken):
    with pytest.raises(ScheduleError, match="rank 0: expected"):
        simulate([broken])


def test_a_stage_has_one_owner():
    with pytest.raises(ScheduleError, match="stage 0 is in the lists of rank 0 and rank 1"):
        simulate([read_actions("F0 B0", 0), read_actions("F1 B1", 0)])


def test_costs_are_one_number_or_one_a_stage():
    with pytest.raises(ValueError, match="one for each of 2 stages"):
        simulate(gpipe(2, 2), Costs([1, 2, 3]))
    with pytest.raises(ValueError, match="from 0"):
        simulate(gpipe(2, 2), Costs(-1))
    with pytest.raises(ValueError, match="from 0"):
        simulate(gpipe(2, 2), Costs(float("nan")))
    with pytest.raises(ValueError, match="weight_backward is a part of backward"):
        simulate(zb_h1(2, 4), Costs(1, 2, weight_backward=3))


def test_nothing_to_do_takes_no_time():
    assert simulate([[], []]).makespan == 0


def test_short_form_round_trip():
    assert [a.label for a in read_actions("F0 B12 I3 W4", 2)] == ["F0", "B12", "I3", "W4"]
    with pytest.raises(ValueError, match="X3"):
        read_actions("F0 X3", 0)


def test_64_stages_and_512_micro_batches():
    """How long that takes is for benchmarks/pipeline.py to say."""
    assert simulate(one_f_one_b(64, 512)).makespan == (512 + 63) * 3
