"""What lesson 11 compares with: attention in one piece, and what a partial attention is reported as."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.split import dtype_of

Partial = tuple[Tensor, Tensor]  # out [..., s, d] and lse [..., s]
PATIENCE = 60.0  # seconds a case of several ranks may take: a deadlock is told much sooner
OBJECT_BYTES = 24 * 1024  # for what is no tensor, where all of a process counts


def whole_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Partial:
    """softmax(q k^T / sqrt(d)) v over the keys that each query sees; 0, and -inf, where it sees none.

    q: [..., s, d]; k, v: [..., S, d]; visible: [s, S] or [..., s, S], whether a query sees a key.
    """
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~visible, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse.isneginf(), 0.0).unsqueeze(-1)).exp()
    return weights @ v, lse


def causal(queries: Tensor, keys: Tensor) -> Tensor:
    """Which of the keys at these positions the queries at those see."""
    return queries.unsqueeze(-1) >= keys


def drawn(case: Case, generator: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    """Normal numbers of the case's dtype."""
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype_of(case))


def queries_keys_values(case: Case, generator: torch.Generator, *more: str) -> Inputs:
    """q, k and v of the case's shape [..., s, d], and what else is named. The case's `scale` is that of q,
    and so of scores.
    """
    found = {name: drawn(case, generator, *case.params["shape"]) for name in ("q", "k", "v", *more)}
    found["q"] *= case.params.get("scale", 1.0)
    return found


def as_handed(rank: Rank, name: str) -> Tensor:
    """A copy of an input [..., s, d]; of kinds "subgroup" and "kept" it lies in memory as a model's
    heads do, [..., s, heads, d], which is not contiguous, and of one head alone as a transposed matrix.
    """
    given = rank.inputs[name].clone()
    if rank.case.kind in ("subgroup", "kept"):
        dims = (-3, -2) if given.dim() > 2 else (-2, -1)
        return given.transpose(*dims).contiguous().transpose(*dims)
    return given


def as_views(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies whose numbers do not lie together in memory."""
    return {name: t.clone().transpose(0, -1).contiguous().transpose(0, -1) for name, t in tensors.items()}


def tell_changed(rank: Rank, given: Mapping[str, Tensor]) -> None:
    """Fact changed: inputs that are no longer what they were, of those handed over, or that ask for a
    gradient, which none of them did.
    """
    changed = (name for name, t in given.items() if t.requires_grad or not torch.equal(t, rank.inputs[name]))
    rank.fact("changed", list(changed))


def unchanged(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Whether the inputs are what they were, by `tell_changed`."""
    changed = answer.facts["changed"]
    return Finding(not changed, "the inputs as they were given", f"changed: {changed}", answer.rank)


def answer_partial(rank: Rank, name: str, partial: Partial) -> None:
    """Answers NAME.out, NAME.lse with 0 in place of -inf, and NAME.empty, which is 1 there."""
    out, lse = partial
    for told, tensor in reported(name, (out, lse)).items():
        rank.answer(told, tensor)


def reported(name: str, partial: Partial) -> dict[str, Tensor]:
    """A partial as it is answered: -inf is no number that could be compared."""
    out, lse = partial
    empty = lse.isneginf()
    return {f"{name}.out": out, f"{name}.lse": lse.masked_fill(empty, 0.0), f"{name}.empty": empty.long()}
