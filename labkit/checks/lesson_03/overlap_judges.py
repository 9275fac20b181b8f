"""Judges of `03.overlapped-data-parallel`: what each backward pass sends, and when."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import nn

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Finding
from labkit.checks.lesson_03.buckets import filled_buckets
from labkit.checks.lesson_03.net import WORDS, ReplicaEvidence, trained
from labkit.checks.shared.beside import STEPS, State, calls_of, calls_text, nbytes, same
from labkit.checks.shared.company import in_company
from labkit.checks.shared.twins import each_once

TIMED = STEPS + 1  # backward passes of a case that is timed
PATIENCE = 2.0  # seconds; a backward pass takes thousandths
SMALLEST_MULTIPLE = 1e-3  # of the mean: less is nothing


def forwards_of(case: Case) -> int:
    """How many forward passes of a step come before its first backward."""
    return 2 if case.params.get("ahead") else 1


def backwards_of(case: Case) -> list[str]:
    """The recordings that hold one backward pass each, through one model and outside no_sync."""
    if case.kind == "many":
        return [f"step {step}" for step in range(TIMED)]
    if case.kind == "no-sync":
        return ["outside", "beside"]
    return [f"step {step}.{m}" for step in range(STEPS) for m in range(forwards_of(case))]


# -- what is sent


def sends_gradients(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """What the timed backward passes left is the mean over the ranks, or one multiple of it: a division that
    is missing or wrong changes nothing in what is sent, and when.
    """
    for answer in evidence.answers:
        expected = {n: t for n, t in evidence.reference(answer).items() if n.startswith("grad ")}
        times = _multiple(expected, answer)
        for key, tensor in expected.items():
            kind, _, name = key.partition(".")
            told = f"{WORDS[kind].format(name)}, or one multiple of that for all"
            yield same(told, tensor * times, answer, key)


def _multiple(expected: State, answer: RankAnswer) -> float:
    """What all gradients of an answer were multiplied by, where it is one number above 0; 1 elsewhere."""
    there = [(t.flatten(), answer.tensors[n].flatten()) for n, t in expected.items() if n in answer.tensors]
    pairs = [(a, b.to(a.dtype)) for a, b in there if a.shape == b.shape]
    whole = sum(float(a @ a) for a, _ in pairs)
    times = sum(float(a @ b) for a, b in pairs) / whole if whole else 1.0
    return times if SMALLEST_MULTIPLE <= times < math.inf else 1.0


def one_a_bucket(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """Count and bytes of the all_reduces of each backward pass; nothing in any forward."""
    for answer in in_company(evidence):
        for name in backwards_of(evidence.case):
            yield from _is_bucket_by_bucket(evidence, answer, name)
        for name in answer.collectives:
            if name.startswith("forward"):
                calls = calls_of(answer, name)
                yield Finding(not calls, "no communication in forward", calls_text(calls), answer.rank)


def _is_bucket_by_bucket(evidence: ReplicaEvidence, answer: RankAnswer, name: str) -> Iterator[Finding]:
    calls, bucket_bytes = calls_of(answer, name), evidence.case.params["bucket_bytes"]
    parameters = list(evidence.first_net(answer).parameters())
    filled = [_bytes(parameters, bucket) for bucket in filled_buckets(parameters, bucket_bytes)]
    seen = calls_text(calls)
    right = [op for op, _ in calls] == ["all_reduce"] * len(filled)
    yield Finding(right, f"{len(filled)} all_reduces, one a bucket", seen, answer.rank)
    yield _moves_once(evidence, answer, name)
    largest = max([bucket_bytes, *filled])
    right = all(size <= largest for _, size in calls)
    yield Finding(right, f"no bucket above {largest:,} bytes", seen, answer.rank)
    moved = [size for _, size in calls]
    told = f"buckets filled from the last parameter to the first, so of {_bytes_text(filled)}"
    yield Finding(moved == filled, told, f"of {_bytes_text(moved)}", answer.rank)


def _moves_once(evidence: ReplicaEvidence, answer: RankAnswer, name: str) -> Finding:
    """Whether backward reduces the gradients' bytes: what is sent beside them for show is more."""
    calls = calls_of(answer, name)
    whole, moved = sum(map(nbytes, trained(evidence.first_net(answer)))), sum(size for _, size in calls)
    told = f"the gradients' {whole:,} bytes, once"
    return Finding(moved == whole, told, f"{moved:,} bytes: {calls_text(calls)}", answer.rank)


def _bytes(parameters: Sequence[nn.Parameter], bucket: Sequence[int]) -> int:
    return sum(nbytes(parameters[number]) for number in bucket)


def _bytes_text(sizes: list[int]) -> str:
    """Sizes in their order: 16, then 1,024 bytes."""
    return f"{', then '.join(f'{size:,}' for size in sizes) or 'no'} bytes"


# -- when


@dataclass(frozen=True)
class _Backward:
    """What one rank did in one backward pass, in seconds from its begin: only their order is judged.

    calls: the all_reduces in the order in which they began. ready: the number of each parameter whose
    gradient came, with the moment. first: the moments at which backward came to the first layer.
    """

    rank: int
    calls: list[Any]
    ready: list[tuple[int, float]]
    first: list[float]

    @property
    def last(self) -> float:
        """When the last gradient was there."""
        return self.ready[-1][1]

    @property
    def begin_of_first(self) -> float:
        """When backward came to the first layer; to the last gradient, where that layer is not used."""
        return min(self.first, default=self.last)

    @property
    def began(self) -> float:
        """When the first all_reduce did."""
        return min((call["start"] for call in self.calls), default=math.inf)

    def are_ready(self, bucket: Sequence[int], moment: float) -> bool:
        """Whether all of these gradients were there before a moment."""
        return all(dict(self.ready).get(number, math.inf) < moment for number in bucket)

    def has_half_under_way(self, whole: int) -> Finding:
        early = sum(call["num_bytes"] for call in self.calls if call["start"] < self.last)
        told = f"half of the {whole:,} bytes under way before the last gradient is ready"
        seen = f"{early:,} bytes; {self._begun}, last gradient after {self.last * 1e3:.2f} ms"
        return Finding(2 * early >= whole, told, seen, self.rank)

    def starts_before_the_first_layer(self) -> Finding:
        told = "an all_reduce starts before backward comes to the first layer"
        seen = f"{self._begun}, backward there after {self.begin_of_first * 1e3:.2f} ms"
        return Finding(self.began < self.begin_of_first, told, seen, self.rank)

    def waits_for_none(self) -> Finding:
        waited = [call for call in self.calls if call["end"] is not None and call["end"] < self.last]
        told = "nothing is waited for before the last gradient is ready"
        return Finding(not waited, told, f"{len(waited)} all_reduces were waited for", self.rank)

    @property
    def _begun(self) -> str:
        return f"the first all_reduce after {self.began * 1e3:.2f} ms" if self.calls else "no all_reduce"


def _backward_of(answer: RankAnswer, name: str) -> _Backward:
    calls = [call for call in each_once(answer.collectives[name]) if call["op"] == "all_reduce"]
    ready = [(number, moment) for number, moment in answer.facts[f"ready {name}"]]
    return _Backward(answer.rank, calls, ready, answer.facts[f"first {name}"])


def starts_early_and_waits_late(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """Of cases whose buckets are small, so that most can start early, and all are used."""
    for answer in evidence.answers:
        for name in backwards_of(evidence.case):
            yield _moves_once(evidence, answer, name)
            backward = _backward_of(answer, name)
            if not backward.calls or not backward.ready:
                yield Finding(False, "an all_reduce that starts during backward", "none", answer.rank)
                continue
            yield backward.has_half_under_way(sum(call["num_bytes"] for call in backward.calls))
            yield backward.starts_before_the_first_layer()
            yield backward.waits_for_none()
        told = "backward goes on to the last gradient while another rank has sent nothing yet"
        seen = f"it stood still until that rank began, {PATIENCE} s later"
        yield Finding(not answer.facts["stalled"], told, seen, 0)


def starts_early(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """The same of any case, where it can be: a bucket can start when all gradients of its own and of those
    before it are there, which is at the end where a rank does not use one of them.
    """
    for answer in in_company(evidence):
        parameters = list(evidence.first_net(answer).parameters())
        buckets = filled_buckets(parameters, evidence.case.params["bucket_bytes"])
        whole = sum(_bytes(parameters, bucket) for bucket in buckets)
        for name in backwards_of(evidence.case):
            backward = _backward_of(answer, name)
            if not backward.ready:
                continue
            yield backward.waits_for_none()
            if 2 * sum(_bytes(parameters, b) for b in _full(buckets, backward, backward.last)) >= whole:
                yield backward.has_half_under_way(whole)
            if len(_full(buckets, backward, backward.begin_of_first)) > 1:
                yield backward.starts_before_the_first_layer()


def _full(buckets: list[list[int]], backward: _Backward, moment: float) -> list[list[int]]:
    """The buckets from the first on whose gradients were all there before a moment."""
    return list(takewhile(lambda bucket: backward.are_ready(bucket, moment), buckets))
