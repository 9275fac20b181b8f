"""Attention over a ring both ways: cases, what a rank is handed, the whole sequence, and the messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.lesson_11.partial import PATIENCE, Partial, causal, queries_keys_values, whole_attention
from labkit.checks.lesson_11.tokens import zigzag
from labkit.checks.shared.beside import calls_of
from labkit.checks.shared.places import groups_of, place_of

PARTS = ("q", "k", "v")
_PRIVATE = "torch.distributed.tensor.experimental._context_parallel._attention"
TORCHS_OWN = (
    "torch.nn.functional.scaled_dot_product_attention",
    f"{_PRIVATE}._templated_ring_attention",
    f"{_PRIVATE}._templated_ring_attention_backward",
)


def ring_case(name: str, kind: str, ranks: int, shape: list[int], seed: int, **params: Any) -> Case:
    """shape: [..., s, d] of the whole sequence. scale: of the scores. quiet: ranks whose outputs have
    a gradient of zeros. blank: ranks whose tokens have values of zeros.
    """
    return Case(name, ranks, {"shape": shape, **params}, seed, kind=kind, timeout=PATIENCE)


def ring_cases(seed: int) -> list[Case]:
    """The visible cases of forward, and of both ways."""
    return [
        ring_case("three ranks", "values", 3, [2, 2, 24, 4], seed, late=[1]),
        ring_case("four ranks, float32", "values", 4, [3, 16, 6], seed, dtype="float32", quiet=[2]),
        ring_case("scores of hundreds", "values", 2, [1, 2, 16, 4], seed, scale=600.0),
        ring_case("crossed groups", "subgroup", 4, [1, 2, 8, 4], seed, groups=[[0, 3], [1, 2]]),
        ring_case("alone", "alone", 1, [2, 6, 1], seed),
    ]


def ring_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """One sequence for each group: [groups, ..., s, d]."""
    each = [queries_keys_values(case, generator, "grad") for _ in groups_of(case)]
    found = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    for name, ranks in (("grad", "quiet"), ("v", "blank")):
        for rank in case.params.get(ranks, []):
            place = place_of(case, rank)
            own = zigzag(case.params["shape"][-2], place.position, place.size)
            found[name][place.index][..., own, :] = 0.0
    return found


def own_tokens_of(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """What a rank is handed: its tokens of its group's sequence."""
    place = place_of(case, rank)
    own = zigzag(case.params["shape"][-2], place.position, place.size)
    return {name: t[place.index][..., own, :].contiguous() for name, t in inputs.items()}


@dataclass(frozen=True)
class Whole(Evidence):
    """With attention over each group's whole sequence, and its gradients."""

    @cached_property
    def partials(self) -> list[Partial]:
        positions = torch.arange(self.case.params["shape"][-2])
        sees = causal(positions, positions)
        return [
            whole_attention(q, k, v, sees)
            for q, k, v in zip(*(self.inputs[name] for name in PARTS), strict=True)
        ]

    @cached_property
    def gradients(self) -> list[dict[str, Tensor]]:
        positions = torch.arange(self.case.params["shape"][-2])
        sees = causal(positions, positions)
        found = []
        for group in range(len(groups_of(self.case))):
            leaves = [self.inputs[name][group].clone().requires_grad_() for name in PARTS]
            q, k, v = leaves
            out, _ = whole_attention(q, k, v, sees)
            gradients = torch.autograd.grad(out, leaves, self.inputs["grad"][group])
            found.append(dict(zip(PARTS, gradients, strict=True)))
        return found

    def own(self, rank: int, of_groups: Sequence[Tensor], dim: int = -2) -> Tensor:
        """The rank's tokens of its group's tensor."""
        place = place_of(self.case, rank)
        own = zigzag(self.case.params["shape"][-2], place.position, place.size)
        return of_groups[place.index].index_select(dim, torch.tensor(own))


def message_bytes(evidence: Evidence, rank: int) -> int:
    """Bytes of one tensor of a rank's tokens."""
    numbers = math.prod(evidence.case.params["shape"]) // place_of(evidence.case, rank).size
    return numbers * evidence.inputs["q"].element_size()


def sends(phase: str, messages: Callable[[int], int]) -> Judge:
    """This many messages' worth of bytes are sent to the next rank and received from the one before, and
    nothing else is communicated, in each recording of that name. messages: (ranks) -> of one tensor of this
    rank's tokens each.
    """

    def find(evidence: Evidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            expected = messages(place_of(evidence.case, answer.rank).size)
            for name in (*answer.earlier(phase), phase):
                yield from _sent(evidence, answer, name, expected)

    return find


def _sent(evidence: Evidence, answer: RankAnswer, name: str, messages: int) -> Iterator[Finding]:
    place = place_of(evidence.case, answer.rank)
    expected = messages * message_bytes(evidence, answer.rank)
    found = [c for c in answer.collectives.get(name, []) if c["source"] == "python"]
    after = place.members[(place.position + 1) % place.size]
    for op, peer in (("send", after), ("recv", place.members[place.position - 1])):
        seen = sum(c["num_bytes"] for c in found if c["op"] == op and c["peer"] == peer)
        told = f"{name}: {op} of {expected:,} bytes in all, rank {peer} at the other end"
        yield Finding(seen == expected, told, f"{seen:,} bytes", answer.rank)
    other = sorted({op for op, _ in calls_of(answer, name)} - {"send", "recv"})
    yield Finding(not other, f"{name}: messages between neighbours alone", ", ".join(other), answer.rank)
