"""What a training on a grid sends in each of its steps, and among whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Finding
from labkit.checks.lesson_09.training_job import Spot, size_of, spot_of
from labkit.checks.lesson_09.training_judges import GridEvidence
from labkit.checks.shared.beside import nbytes
from labkit.checks.shared.split import dtype_of
from labkit.checks.shared.sums import summed_bytes

SCALARS = 64  # bytes of a few numbers: losses, norms
ALL_SCALARS = 1024  # bytes of all of them: of each parameter's norm by itself, too
MORE_INSIDE = 2  # times what a group along tp has to send: what is computed again is sent again
TO_AND_FRO = ("send", "isend", "recv", "irecv")
Calls = Sequence[dict[str, Any]]


def sends_inside_groups(evidence: GridEvidence) -> Iterator[Finding]:
    """In each step: gradients once between replicas, activations over boundaries, nothing else outside of tp.
    In the first one weights may be made equal too, and ranks may wait for each other.
    """
    for answer in evidence.answers:
        names = [*answer.earlier("step"), "step"]
        for number, name in enumerate(names, 1):
            for finding in _in_a_step(evidence, answer, answer.collectives[name], number - 1):
                yield Finding(
                    finding.passed, f"step {number}: {finding.expected}", finding.seen, finding.rank
                )


def _in_a_step(evidence: GridEvidence, answer: RankAnswer, calls: Calls, step: int) -> Iterator[Finding]:
    first, once = step == 0, _activations(evidence, step)
    spot = spot_of(evidence.case, answer.rank)
    known = {tuple(sorted(group)) for group in (*spot.groups.values(), spot.tied_pair)}
    outside = {tuple(sorted(c["group"])) for c in calls if c["num_bytes"] or not first} - known
    told = f"calls among {_lists(known)}"
    yield Finding(not outside, told, f"calls among {_lists(outside)}", answer.rank)
    yield from _between_replicas(evidence, answer, calls, first)
    yield from _over_boundaries(evidence, answer, calls, once, first)
    yield from _inside_tensor_groups(evidence, answer, calls, once)
    yield _by_all_stages(answer, calls, spot)


def _lists(groups: set[tuple[int, ...]]) -> str:
    return " and ".join(str(list(group)) for group in sorted(groups))


def _among(calls: Calls, members: Sequence[int]) -> Calls:
    return [c for c in calls if sorted(c["group"]) == sorted(members)]


def _large(calls: Calls) -> Calls:
    return [c for c in calls if c["num_bytes"] > SCALARS]


def _own_bytes(evidence: GridEvidence, spot: Spot) -> int:
    return sum(map(nbytes, spot.cut(evidence.full).values()))


def _by_all_stages(answer: RankAnswer, calls: Calls, spot: Spot) -> Finding:
    """A tied table is the affair of both ends, so stages in between have nothing to add up."""
    stages = sorted(spot.groups["pp"])
    inner = len(stages) > 2 and [
        f"{c['op']} of {c['num_bytes']:,} bytes"
        for c in _large(_among(calls, stages))
        if c["op"] not in TO_AND_FRO
    ]
    told = f"single numbers alone in calls of all stages, ranks {stages}"
    return Finding(not inner, told, ", ".join(inner or []), answer.rank)


def _between_replicas(
    evidence: GridEvidence, answer: RankAnswer, calls: Calls, first: bool
) -> Iterator[Finding]:
    spot = spot_of(evidence.case, answer.rank)
    replicas = spot.groups["dp"]
    if len(replicas) > 1:
        own, among = _own_bytes(evidence, spot), _among(calls, replicas)
        sent = summed_bytes(_large(among))
        most = own * (1 + first) * _widened(evidence)
        right = own <= sent + SCALARS * len(_large(calls)) and sent <= most + SCALARS
        told = f"{own:,} bytes of gradients reduced among replicas {replicas}"
        yield Finding(right, told, f"{sent:,.0f} bytes", answer.rank)
        told = f"{most:,} bytes and single numbers among replicas {replicas}"
        sent = summed_bytes(among)
        yield Finding(sent <= most + ALL_SCALARS, told, f"{sent:,.0f} bytes", answer.rank)


def _over_boundaries(
    evidence: GridEvidence, answer: RankAnswer, calls: Calls, once: int, first: bool
) -> Iterator[Finding]:
    """Both ends may send their parts of a tied table to each other, or sum them in a call. once: bytes of the
    step's activations between two layers.
    """
    spot = spot_of(evidence.case, answer.rank)
    pair, stages = sorted(spot.tied_pair), sorted(spot.groups["pp"])
    if len(stages) > 1:
        among = [c for c in calls if sorted(c["group"]) in (pair, stages)]
        expected = once * ((not spot.first) + (not spot.last))
        sent = sum(c["num_bytes"] for c in _large(among) if c["op"] in ("send", "isend"))
        table = _tied_bytes(evidence, spot) * (1 + first) * _widened(evidence)
        told = f"{expected:,} bytes sent to the stages before and behind stage {spot.stage}"
        yield Finding(expected <= sent <= expected + table, told, f"{sent:,} bytes", answer.rank)
        both = [c for c in among if c["op"] not in TO_AND_FRO]
        summed = summed_bytes(_large(both)) + sent - expected
        told = f"{table:,} bytes of a tied table summed on ranks {pair}"
        yield Finding(summed <= table + SCALARS, told, f"{summed:,.0f} bytes", answer.rank)
        single = summed_bytes(c for c in both if c["num_bytes"] <= SCALARS)
        told = f"single numbers beside, in all {ALL_SCALARS:,} bytes at most"
        yield Finding(single <= table + ALL_SCALARS, told, f"{single:,.0f} bytes", answer.rank)


def _widened(evidence: GridEvidence) -> int:
    """How many times larger gradients are where those of 16 bits are summed in 32."""
    dtype = dtype_of(evidence.case)
    return torch.promote_types(dtype, torch.float32).itemsize // dtype.itemsize


def _activations(evidence: GridEvidence, step: int) -> int:
    """Bytes of those of all rows of a step, between two layers."""
    rows, tokens = size_of(evidence.case, step)
    return int(dtype_of(evidence.case).itemsize * rows * tokens * evidence.case.params["hidden"])


def _tied_bytes(evidence: GridEvidence, spot: Spot) -> int:
    """Of this rank's part of the table, where another stage has a copy."""
    if not spot.tied or spot.first == spot.last:
        return 0
    own = spot.cut(evidence.full)
    return nbytes(own["tokens.weight" if spot.first else "head.weight"])


def _inside_tensor_groups(
    evidence: GridEvidence, answer: RankAnswer, calls: Calls, once: int
) -> Iterator[Finding]:
    """How often is left open, in bounds: activations twice in each block, there and back, once at either end,
    and three numbers a token for the loss. All weights or gradients may be put together once.
    """
    spot = spot_of(evidence.case, answer.rank)
    members = spot.groups["tp"]
    if len(members) > 1:
        asked = once * (4 * len(spot.layers) + spot.first + spot.last)
        asked += spot.last * 3 * once * _widened(evidence) // evidence.case.params["hidden"]
        gathered = _own_bytes(evidence, spot) * len(members) // 2
        most = MORE_INSIDE * asked + gathered + ALL_SCALARS
        sent = summed_bytes(_among(calls, members))
        told = f"about {asked:,} bytes of activations among ranks {members}, at most {most:,} bytes in all"
        yield Finding(sent <= most, told, f"{sent:,.0f} bytes", answer.rank)
