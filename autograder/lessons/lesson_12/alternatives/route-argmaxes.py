"""The best of what is left, k times; gates from logarithms."""

import math

import torch
from torch import Tensor


def _pick(scores: Tensor, k: int) -> Tensor:
    """The k highest of each row, one after the other."""
    left, found = scores.clone(), []
    for _ in range(k):
        best = left.argmax(dim=-1, keepdim=True)
        found.append(best)
        left = left.scatter(-1, best, -math.inf)
    return torch.cat(found, dim=-1)


def route(
    tokens: Tensor, router: Tensor, k: int, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    num_experts = len(router)
    if not 0 < k <= num_experts:
        raise ValueError(f"cannot choose {k} of {num_experts} experts")
    wide = torch.double if torch.double in (tokens.dtype, router.dtype) else torch.float
    logits = torch.einsum("nh,eh->ne", tokens.to(wide), router.to(wide))
    logs = logits - logits.logsumexp(dim=-1, keepdim=True)
    with torch.no_grad():
        scores = logs.exp()
        if bias is not None:
            scores = scores + bias
        experts = _pick(scores, k)
    chosen = logs.take_along_dim(experts, dim=-1)
    gates = (chosen - chosen.logsumexp(dim=-1, keepdim=True)).exp()
    return gates, experts, logs.exp()
