"""What leaves in stage 2, and when, and what stays: buckets one after the other, and nothing beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_08.buckets import (
    bucket_bytes_of,
    layer_bytes,
    make_buckets,
    most_at_rest,
    most_in_backward,
    num_buckets,
)
from labkit.checks.lesson_08.net import STEPS, net_of, sent
from labkit.checks.lesson_08.whole import nothing_else
from labkit.checks.shared.beside import calls_of
from labkit.checks.shared.places import place_of
from labkit.checks.shared.split import dtype_of


def leaves_as_it_comes(evidence: Evidence) -> Iterator[Finding]:
    """A reduce-scatter for each bucket, the first before the last gradient is there, and nothing else; then a
    gather for each.
    """
    case = evidence.case
    for answer in evidence.answers:
        scattered = sent(answer, "step 0", "reduce_scatter")
        expected = [bucket_bytes_of(case)] * num_buckets(case)
        others = sorted({op for op, _ in calls_of(answer, "step 0")} - {"reduce_scatter", "barrier"})
        right = scattered == expected and not others
        told = f"{len(expected)} reduce_scatters of {expected[0]:,} bytes"
        yield Finding(right, told, f"{scattered}; others: {', '.join(others) or 'none'}", answer.rank)
        yield _early(answer)
        seen = [call for call in calls_of(answer, "gather") if call[0] != "barrier"]
        share = expected[0] // case.ranks
        told = f"gather_weights: {len(expected)} all_gathers of {share:,} bytes"
        yield Finding(seen == [("all_gather", share)] * len(expected), told, str(seen), answer.rank)


def _early(answer: RankAnswer) -> Finding:
    starts = [c["start"] for c in answer.collectives["step 0"] if c["op"] == "reduce_scatter"]
    ready = answer.facts["ready"]
    right = bool(starts and ready) and starts[0] < ready[-1]
    return Finding(right, "a reduce_scatter before the last gradient is there", "none", answer.rank)


def leaves_bucket_by_bucket(evidence: Evidence) -> Iterator[Finding]:
    """Also of a small module, whatever of it is used: in each backward one reduce-scatter a bucket, then one
    gather a bucket in each `gather_weights`, and nothing else that is large.
    """
    case = evidence.case
    passes = case.params["micro_batches"]
    between = passes - 1 if case.params.get("gathers_between") else 0
    for answer in evidence.answers:
        size = place_of(case, answer.rank).size
        shares = _shares(case, size)
        for step in range(STEPS if size > 1 else 0):
            phase, gather = f"step {step}", f"gather {step}"
            buckets = passes * [size * share for share in shares]
            besides = buckets if case.params.get("another") else []  # of the other module, if they leave here
            yield _sends(answer, phase, "reduce_scatter", buckets, besides)
            yield _sends(answer, phase, "all_gather", between * shares)
            yield nothing_else(answer, phase)
            yield _sends(answer, gather, "all_gather", shares)
            yield nothing_else(answer, gather)


def _shares(case: Case, size: int) -> list[int]:
    """Bytes of a rank's shard of each bucket."""
    net = net_of(case)
    parameters = dict(net.named_parameters())
    buckets = make_buckets(net, case.params["bucket_bytes"])
    numbers = (sum(parameters[name].numel() for name in names) for names in buckets)
    return [-(-number // size) * dtype_of(case).itemsize for number in numbers]


def _sends(
    answer: RankAnswer, phase: str, op: str, expected: Sequence[int], besides: Sequence[int] = ()
) -> Finding:
    seen = sorted(sent(answer, phase, op))
    right = seen in (sorted(expected), sorted([*expected, *besides]))
    return Finding(right, f"{phase}: {op}s of {sorted(expected)} bytes", str(seen), answer.rank)


def stays_small(evidence: Evidence) -> Iterator[Finding]:
    """At the peak: the shards, two buckets, and room for what a backend copies; at the end: the shards."""
    case = evidence.case
    whole = case.params["layers"] * layer_bytes(case)
    share = whole // case.ranks
    bucket, most = bucket_bytes_of(case), most_in_backward(case)
    for answer in evidence.answers:
        made, peak, held = (answer.facts[name] for name in ("made", "peak", "held_bytes"))
        told = "the weights once, each shard a view of them: no other tensors before backward"
        yield Finding(made <= bucket // 4, told, f"{made:,} bytes more", answer.rank)
        told = f"at most {most:,} bytes of new tensors in backward (all gradients: {whole:,})"
        yield Finding(share <= peak <= most, told, f"{peak:,}", answer.rank)
        told = f"{share:,} bytes of gradients after backward"
        yield Finding(share <= held <= most_at_rest(case), told, f"{held:,}", answer.rank)
        yield from _leave_in_turn(case, answer)


def _leave_in_turn(case: Case, answer: RankAnswer) -> Iterator[Finding]:
    """When a bucket is complete, at most the one before it has not begun to leave: bytes alone do not tell,
    as a backend's copies are among them.
    """
    starts = [c["start"] for c in answer.collectives["step 0"] if c["op"] == "reduce_scatter"]
    complete = answer.facts["ready"][case.params["layers_a_bucket"] - 1 :: case.params["layers_a_bucket"]]
    for number, moment in enumerate(complete, 1):
        begun = sum(start < moment for start in starts)
        told = f"{max(0, number - 2)} reduce_scatters begun, or more, when bucket {number} is complete"
        yield Finding(begun >= number - 2, told, str(begun), answer.rank)
