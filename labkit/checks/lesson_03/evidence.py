"""What lesson 03's judges share: replicas against a reference net, and calls against what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from labkit.checks.case import JSON, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.old_form import Finding


def tensors_match(
    property_name: str, answer: RankAnswer, prefix: str, expected: Mapping[str, Tensor | None], told: str
) -> Iterator[Finding]:
    """Whether each tensor arrived as "PREFIX.NAME" with the expected value; an expected None asks for
    zeros.
    """
    for name, tensor in expected.items():
        if tensor is None:
            seen = answer.tensors.get(f"{prefix}.{name}")
            fine = seen is not None and not seen.any()
            yield Finding(property_name, fine, f"{name}: no gradient, or zeros", "a gradient", answer.rank)
            continue
        wrong = difference(tensor.detach(), answer.tensors.get(f"{prefix}.{name}"))
        yield Finding(property_name, wrong is None, f"{name} {told}", wrong or "", answer.rank)


def calls_are(
    property_name: str, answer: RankAnswer, recording: str, op: str, sizes: Sequence[int], told: str
) -> Iterator[Finding]:
    """Whether a recording holds calls of `op` with these bytes, in any order, and nothing else."""
    calls = answer.collectives.get(recording, [])
    fine = sorted((c["op"], c["num_bytes"]) for c in calls) == sorted((op, size) for size in sizes)
    yield Finding(property_name, fine, f"{told}: {op} of {sorted(sizes)} bytes", describe(calls), answer.rank)


def describe(calls: Sequence[Mapping[str, JSON]]) -> str:
    """The calls in words, shortened."""
    words = [f"{call['op']} of {call['num_bytes']} bytes" for call in calls]
    more = f" and {len(words) - 6} more" if len(words) > 6 else ""
    return ("; ".join(words[:6]) + more) or "no communication"


def groups_used(property_name: str, answer: RankAnswer, members: Sequence[int]) -> Iterator[Finding]:
    """Whether every recorded call took place in the group that was handed over."""
    used = sorted({tuple(c["group"]) for calls in answer.collectives.values() for c in calls})
    fine = used in ([tuple(members)], []) and bool(used or len(members) == 1)
    yield Finding(property_name, fine, f"calls on ranks {list(members)} only", f"on {used}", answer.rank)
