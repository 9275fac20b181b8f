"""The arithmetic of lesson 09 against torch's grid, simulated and published steps, and trying everything."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from textbook_schedules import one_f_one_b

from labkit.theory.grid import GridPlan, Machines
from labkit.theory.grid.costs import broken_rules, fastest, held_bytes, seconds_by_term
from labkit.theory.grid.placement import (
    between_nodes,
    coordinates_of,
    groups_along,
    least_between_nodes,
    rank_of,
)
from labkit.theory.models import gpt, preset
from labkit.theory.schedule import Costs, simulate

A100 = Machines(2, 8, memory=40e9, flops=180e12, links=240e9, network=25e9)
SMALL = gpt(24, 2304, 24)
grids = st.fixed_dictionaries({axis: st.integers(1, 4) for axis in ("dp", "pp", "tp")})
orders = st.permutations(["dp", "pp", "tp"])


@given(grids, orders)
def test_ranks_stand_as_in_torchs_mesh(sizes: dict[str, int], order: list[str]) -> None:
    """DeviceMesh numbers ranks as a tensor of that shape counts its elements."""
    mesh = torch.arange(math.prod(sizes.values())).view([sizes[axis] for axis in order])
    for rank in range(mesh.numel()):
        at = coordinates_of(rank, sizes, order)
        assert mesh[tuple(at[axis] for axis in order)] == rank == rank_of(at, sizes, order)
    for dim, axis in enumerate(order):
        rows = mesh.movedim(dim, -1).reshape(-1, sizes[axis]).tolist()
        assert sorted(groups_along(axis, sizes, order)) == sorted(rows)


@given(grids, orders, st.integers(1, 9))
def test_what_crosses_is_what_both_ends_say(sizes: dict[str, int], order: list[str], node: int) -> None:
    """Counted from a table of who sends to whom, made from the ranks' numbers alone."""
    sent = {"dp": 1.0, "pp": 100.0, "tp": 10_000.0}
    count = dict.fromkeys(order, 0.0)
    for axis in order:
        stride = math.prod(sizes[inner] for inner in order[order.index(axis) + 1 :])
        for rank in range(math.prod(sizes.values())):
            place = rank // stride % sizes[axis]
            on = rank + stride if place < sizes[axis] - 1 else rank - place * stride
            if axis == "pp":
                crossed = place < sizes[axis] - 1 and rank // node != on // node
                count[axis] += 2 * sent[axis] * crossed
            else:
                count[axis] += sent[axis] * (rank // node != on // node)
    assert between_nodes(sizes, order, node, sent) == count
    every = [sum(between_nodes(sizes, o, node, sent).values()) for o in permutations(sizes)]
    assert least_between_nodes(sizes, node, sent) == min(every) <= sum(count.values())


@given(st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(1, 12))
@settings(deadline=None)
def test_compute_traffic_and_bubble_are_a_simulated_pipeline(stages: int, micro_batches: int) -> None:
    """1F1B, played through action by action, takes as long as the three terms."""
    plan = GridPlan(1, 2, stages, 1, zero=0)
    terms = seconds_by_term(plan, SMALL, A100, micro_batches, 2048)
    turn = (terms["compute"] + terms["tensor"]) / micro_batches
    played = simulate(one_f_one_b(stages, micro_batches), Costs(turn / 3, 2 * turn / 3))
    assert max(ends[-1] for ends in played.ends) == pytest.approx(sum(terms.values()))


def test_data_parallel_traffic_is_hidden_as_far_as_it_can_be() -> None:
    slow = Machines(16, 1, memory=40e9, flops=180e12, links=240e9, network=1e9)
    fast = Machines(16, 1, memory=40e9, flops=180e12, links=240e9, network=1e13)
    for machines, zero in ((slow, 0), (slow, 1), (fast, 0), (fast, 1)):
        terms = seconds_by_term(GridPlan(16, zero=zero), SMALL, machines, 16, 2048)
        half = 15 / 16 * 2 * 1.65e9 / machines.bandwidth(16, 1)
        hidden = 2 / 3 * terms["compute"]
        expected = {0: max(0, 2 * half - hidden), 1: max(0, half - hidden) + half}[zero]
        assert terms["data"] == pytest.approx(expected, rel=0.02)


# SC21 (arXiv 2104.04473), Table 1: a, h, L, t, p, GPUs, batch, micro-batch; seconds by its equation 3
SC21 = [
    ((24, 2304, 24), (1, 1, 32, 512, 16), 3.53),
    ((32, 4096, 36), (4, 1, 128, 512, 16), 3.70),
    ((48, 6144, 40), (8, 1, 256, 1024, 8), 9.40),
    ((64, 8192, 48), (8, 2, 512, 1536, 4), 14.45),
]


def test_published_step_times() -> None:
    """With one rate for all sizes, the step times of runs without interleaving are a fifth off at most."""
    for (a, h, layers), (t, p, gpus, batch, b), seconds in SC21:
        machines = Machines(gpus // 8, 8, memory=80e9, flops=150e12, links=240e9, network=25e9)
        plan = GridPlan(gpus // (t * p), t, p, b, zero=0, recompute=True)
        told = sum(seconds_by_term(plan, gpt(layers, h, a), machines, batch, 2048).values())
        assert told == pytest.approx(seconds, rel=0.2)


def test_the_bandwidth_of_rings() -> None:
    inside, across, beside = A100.bandwidth(8, 1), A100.bandwidth(16, 1), A100.bandwidth(2, 8)
    assert inside == 240e9, "a node's links"
    assert across == 8 * 25e9, "one ring has all cards of a node"
    assert beside == 25e9, "eight rings share them"
    falling = Machines(64, 8, 80e9, 600e12, 436e9, 50e9, falloff=0.6)
    assert falling.bandwidth(512, 1) == pytest.approx(33e9, rel=0.02)  # measured: 32.9 (Ultra-Scale Playbook)


def test_the_fastest_plan_is_the_fastest_of_all_that_break_no_rule() -> None:
    """Against every tuple of numbers, with no idea which can be left out."""
    model, machines, batch = gpt(6, 1536, 12), Machines(2, 4, 10e9, 100e12, 100e9, 5e9), 24
    every = {}
    for d in range(1, 9):
        for t in range(1, 9):
            for p in range(1, 9):
                for b in range(1, 25):
                    for zero, recompute in ((0, False), (0, True), (1, False), (1, True)):
                        plan = GridPlan(d, t, p, b, zero, recompute)
                        if d * t * p == 8 and not broken_rules(plan, model, machines, batch, 2048):
                            terms = seconds_by_term(plan, model, machines, batch, 2048)
                            every[plan] = sum(terms.values())
    plan, seconds = fastest(model, machines, batch, 2048)
    assert seconds == min(every.values()) == every[plan]
    assert any(plan.recompute for plan in every)


def test_every_rule_is_named_with_its_numbers() -> None:
    model = preset("Llama 3 8B")
    assert broken_rules(GridPlan(3, 16, 40, 5), model, A100, 64, 2048) == {
        "gpus": (1920, 16),
        "node": (16, 8),
        "kv heads": (8, 16),
        "layers": (40, 32),
        "batch": (64, 15),
    }
    one = GridPlan(16)
    (held,) = broken_rules(one, model, A100, 64, 2048)["memory"]
    assert held == held_bytes(one, model, 64, 2048) > 0.9 * A100.memory
    with pytest.raises(ValueError, match="no plan of"):
        fastest(preset("Llama 3 70B"), A100, 64, 2048)
