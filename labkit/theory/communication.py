"""What communication costs: the alpha-beta model of collectives over a ring, and nccl-tests' bandwidths.

A message of m bytes takes alpha + m beta seconds: alpha is the latency of a message in seconds, beta the
seconds per byte of one link (1/beta is the link's bandwidth in bytes per second). With n ranks, and S the
bytes of the whole tensor (for all-gather the gathered one, for reduce-scatter the one before the reduction):

    reduce-scatter = all-gather = (n-1) alpha + (n-1)/n S beta
    all-reduce                  = 2(n-1) alpha + 2(n-1)/n S beta

Latency terms: Thakur, Rabenseifner and Gropp 2005. Bandwidth terms: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Collective = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce"]


def message_seconds(num_bytes: float, alpha: float, beta: float) -> float:
    """One message: alpha + S beta."""
    return alpha + num_bytes * beta


def reduce_scatter_seconds(num_bytes: float, world_size: int, alpha: float, beta: float) -> float:
    """A ring reduce-scatter of S bytes a rank: (n-1) messages of S/n bytes."""
    _check(num_bytes, world_size)
    return (world_size - 1) * message_seconds(num_bytes / world_size, alpha, beta)


def all_gather_seconds(num_bytes: float, world_size: int, alpha: float, beta: float) -> float:
    """A ring all-gather whose result has S bytes: (n-1) messages of S/n bytes."""
    return reduce_scatter_seconds(num_bytes, world_size, alpha, beta)


def all_reduce_seconds(
    num_bytes: float, world_size: int, alpha: float, beta: float, gamma: float = 0.0
) -> float:
    """A ring all-reduce: a reduce-scatter, then an all-gather.

    gamma: seconds to add two numbers, per byte; it is paid on (n-1)/n S bytes.
    """
    halves = 2 * reduce_scatter_seconds(num_bytes, world_size, alpha, beta)
    return halves + (world_size - 1) / world_size * num_bytes * gamma


def tree_broadcast_seconds(num_bytes: float, world_size: int, alpha: float, beta: float) -> float:
    """A binomial tree: ceil(log2 n) rounds of S bytes (Thakur, Rabenseifner and Gropp 2005)."""
    _check(num_bytes, world_size)
    return math.ceil(math.log2(world_size)) * message_seconds(num_bytes, alpha, beta)


def star_all_reduce_seconds(num_bytes: float, world_size: int, alpha: float, beta: float) -> float:
    """Everyone sends to rank 0, which adds and sends the sum back: 2(n-1) messages over rank 0's link."""
    _check(num_bytes, world_size)
    return 2 * (world_size - 1) * message_seconds(num_bytes, alpha, beta)


def bus_factor(collective: Collective, world_size: int) -> float:
    """Bytes that cross each link per byte of S: what turns algorithm bandwidth into bus bandwidth.

    nccl-tests, doc/PERFORMANCE.md. One rank needs no link: 0.
    """
    _check(0, world_size)
    if world_size == 1:
        return 0.0
    share = (world_size - 1) / world_size
    factors = {"all_reduce": 2 * share, "broadcast": 1.0, "reduce": 1.0}
    factors |= dict.fromkeys(("reduce_scatter", "all_gather", "all_to_all"), share)
    if collective not in factors:
        raise ValueError(f"collective must be one of {', '.join(factors)}, got {collective!r}")
    return factors[collective]


def bus_bandwidth(collective: Collective, num_bytes: float, seconds: float, world_size: int) -> float:
    """Bytes per second over each link: algorithm bandwidth S/t times `bus_factor` (nccl-tests)."""
    if not seconds > 0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    _check(num_bytes, world_size)
    return num_bytes / seconds * bus_factor(collective, world_size)


@dataclass(frozen=True)
class AlphaBeta:
    """A link, as the model sees it: seconds per message and seconds per byte."""

    alpha: float
    beta: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return 1 / self.beta

    @property
    def half_bandwidth_bytes(self) -> float:
        """The message that spends as long on latency as on its bytes: alpha/beta."""
        return self.alpha / self.beta


def fit_alpha_beta(sizes: Sequence[float], seconds: Sequence[float], world_size: int) -> AlphaBeta:
    """The alpha and beta whose all-reduce times come closest to those measured.

    Least squares on relative errors, so that microseconds count as much as milliseconds; neither comes out
    negative. sizes: S in bytes, at least two different ones. seconds: what each took.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or world_size < 2:
        raise ValueError(
            f"expected as many seconds as sizes, two different sizes or more and two ranks or more; got "
            f"{len(sizes)} sizes ({len(set(sizes))} different), {len(seconds)} seconds, {world_size} ranks"
        )
    steps = 2 * (world_size - 1)
    rows = [(steps / t, steps * size / world_size / t) for size, t in zip(sizes, seconds, strict=True)]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = sum(row[0] for row in rows), sum(row[1] for row in rows)
    determinant = aa * bb - ab * ab
    alpha, beta = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if alpha < 0:
        return AlphaBeta(0.0, b / bb)
    return AlphaBeta(alpha, beta) if beta > 0 else AlphaBeta(a / aa, 0.0)


def _check(num_bytes: float, world_size: int) -> None:
    if world_size < 1:
        raise ValueError(f"world_size must be 1 or more, got {world_size}")
    if num_bytes < 0:
        raise ValueError(f"num_bytes must be 0 or more, got {num_bytes}")
