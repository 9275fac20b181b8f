"""What lesson 12 compares with: routing and experts in one process, and inputs without ties."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.checks.case import Case
from labkit.checks.shared.split import drawn

MARGIN = 1e-3  # between probabilities that decide: far more than float32 loses, less than bfloat16 does
CANDIDATES = 60  # as many tokens are drawn for each that is kept


class Routed(NamedTuple):
    """gates, experts: [n, k], by falling preference; probabilities: [n, E]."""

    gates: Tensor
    experts: Tensor
    probabilities: Tensor


def routed(tokens: Tensor, router: Tensor, k: int, bias: Tensor | None = None) -> Routed:
    """Each token's k experts: chosen by probability + bias, weighted by probability alone."""
    wide = torch.promote_types(torch.promote_types(tokens.dtype, router.dtype), torch.float32)
    probabilities = (tokens.to(wide) @ router.to(wide).T).softmax(-1)
    experts = (probabilities if bias is None else probabilities + bias).topk(k, sorted=True).indices
    gates = probabilities.gather(1, experts)
    return Routed(gates / gates.sum(-1, keepdim=True), experts, probabilities)


def decided_tokens(
    case: Case,
    generator: torch.Generator,
    count: int,
    router: Tensor,
    k: int,
    bias: Tensor | None = None,
    idle: tuple[int, ...] = (),
    margin: float = MARGIN,
) -> Tensor:
    """[count, h]: tokens whose k experts, and their order, no rounding can change, and none of them idle.

    margin: between scores that decide; with less than `MARGIN` only float64 keeps them apart.
    """
    num_experts, hidden = router.shape
    tokens = drawn(case, generator, CANDIDATES * (count + 1), hidden)
    found = routed(tokens.double(), router.double(), k, bias)
    scores = found.probabilities if bias is None else found.probabilities + bias
    highest = scores.sort(-1, descending=True).values[:, : min(k + 1, num_experts)]
    apart = (highest[:, :-1] - highest[:, 1:] > margin).all(-1)
    allowed = ~torch.isin(found.experts, torch.tensor(idle, dtype=torch.long)).any(-1)
    kept = tokens[apart & allowed][:count]
    if len(kept) < count:
        raise ValueError(f"{case.name}: {len(kept)} of {count} tokens without a tie; make the case easier")
    return kept


def drawn_experts(generator: torch.Generator, tokens: int, k: int, among: list[int]) -> Tensor:
    """[tokens, k]: for each token k different ones of these experts."""
    order = torch.rand(tokens, len(among), generator=generator).argsort(-1)[:, :k]
    return torch.tensor(among, dtype=torch.long)[order]
