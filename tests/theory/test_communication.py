"""The alpha-beta model against a step-by-step count of a ring, and the bandwidth factors as published."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.theory import communication as comm

RANKS = st.integers(1, 64)
BYTES = st.integers(0, 2**34)
ALPHA, BETA = 5e-6, 1 / 300e9


def simulated_ring(num_bytes: float, world_size: int, steps: int) -> float:
    """Seconds of a ring in which, at every step, every rank sends one n-th part at the same time."""
    part, clock = num_bytes / world_size, [0.0] * world_size
    for _ in range(steps):
        arrived = [clock[rank - 1] + ALPHA + part * BETA for rank in range(world_size)]
        clock = [max(own, other) for own, other in zip(clock, arrived, strict=True)]
    return max(clock)


@given(BYTES, RANKS)
def test_all_reduce_is_the_time_of_2_n_minus_1_ring_steps(num_bytes: int, world_size: int) -> None:
    """Closed form against the steps, added up."""
    simulated = simulated_ring(num_bytes, world_size, 2 * (world_size - 1))
    assert math.isclose(
        comm.all_reduce_seconds(num_bytes, world_size, ALPHA, BETA), simulated, rel_tol=1e-9, abs_tol=1e-15
    )


@given(BYTES, RANKS)
def test_all_reduce_is_reduce_scatter_then_all_gather(num_bytes: int, world_size: int) -> None:
    """Both halves cost the same, and the sum of them is the whole."""
    half = comm.reduce_scatter_seconds(num_bytes, world_size, ALPHA, BETA)
    assert comm.all_gather_seconds(num_bytes, world_size, ALPHA, BETA) == half
    assert comm.all_reduce_seconds(num_bytes, world_size, ALPHA, BETA) == 2 * half


def test_reduction_is_paid_on_the_bytes_that_arrive_to_be_added() -> None:
    """gamma (n-1)/n S: three quarters of 4 GB at 1 ns per byte are 3 s."""
    assert math.isclose(comm.all_reduce_seconds(4e9, 4, 0, 0, gamma=1e-9), 3.0)


@pytest.mark.parametrize(
    ("collective", "world_size", "factor"),
    [
        # nccl-tests, doc/PERFORMANCE.md: 2(n-1)/n, (n-1)/n, 1
        ("all_reduce", 8, 1.75),
        ("all_reduce", 2, 1.0),
        ("reduce_scatter", 8, 0.875),
        ("all_gather", 8, 0.875),
        ("all_to_all", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("reduce", 4, 1.0),
        ("all_reduce", 1, 0.0),
    ],
)
def test_bus_factors(collective: comm.Collective, world_size: int, factor: float) -> None:
    """The published factors."""
    assert comm.bus_factor(collective, world_size) == factor


@given(st.integers(2, 64), st.integers(1, 2**34))
def test_bus_bandwidth_of_a_ring_without_latency_is_the_links(world_size: int, num_bytes: int) -> None:
    """That is what the factor is for: the number to compare with the hardware, whatever n is."""
    seconds = comm.all_reduce_seconds(num_bytes, world_size, 0.0, BETA)
    assert math.isclose(comm.bus_bandwidth("all_reduce", num_bytes, seconds, world_size), 300e9, rel_tol=1e-9)


def test_a_star_is_n_times_slower_than_a_ring_for_large_tensors() -> None:
    """2(n-1) S beta against 2(n-1)/n S beta."""
    star, ring = (f(1e9, 8, 0, BETA) for f in (comm.star_all_reduce_seconds, comm.all_reduce_seconds))
    assert math.isclose(star / ring, 8)


def test_tree_broadcast_counts_rounds() -> None:
    """ceil(log2 n) rounds: 0, 1, 2, 2, 3."""
    assert [comm.tree_broadcast_seconds(0, n, 1.0, 0.0) for n in (1, 2, 3, 4, 5)] == [0, 1, 2, 2, 3]


@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-7), st.integers(2, 16))
def test_fit_finds_the_alpha_and_beta_it_was_made_from(alpha: float, beta: float, world_size: int) -> None:
    """Times made by the model come back as the model."""
    sizes = [alpha / beta * factor for factor in (0.1, 1.0, 10.0, 100.0)]
    seconds = [comm.all_reduce_seconds(size, world_size, alpha, beta) for size in sizes]
    fitted = comm.fit_alpha_beta(sizes, seconds, world_size)
    assert math.isclose(fitted.alpha, alpha, rel_tol=1e-6)
    assert math.isclose(fitted.beta, beta, rel_tol=1e-6)
    assert math.isclose(fitted.half_bandwidth_bytes * fitted.beta, alpha, rel_tol=1e-6)


def test_fit_is_never_negative() -> None:
    """Noise that a straight line would answer with a negative latency, or a negative cost of a byte."""
    assert comm.fit_alpha_beta([1e3, 1e6, 2e6], [1e-9, 1e-3, 2.1e-3], 4).alpha == 0
    assert comm.fit_alpha_beta([1e3, 1e6], [2e-3, 1e-3], 4).beta == 0


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: comm.all_reduce_seconds(1, 0, 0, 0), "world_size"),
        (lambda: comm.all_reduce_seconds(-1, 2, 0, 0), "num_bytes"),
        (lambda: comm.bus_bandwidth("all_reduce", 1, 0.0, 2), "seconds"),
        (lambda: comm.bus_factor("all_redu", 2), "all_redu"),  # type: ignore[arg-type]
        (lambda: comm.fit_alpha_beta([8, 8], [1, 1], 2), "two different sizes"),
    ],
)
def test_errors_name_what_was_wrong(call: object, named: str) -> None:
    """Each message holds the argument's name or value."""
    with pytest.raises(ValueError, match=named):
        call()  # type: ignore[operator]
