"""What experts that are spread over ranks send: rows to the experts that a token visits, and rows back.

GShard (Lepikhin 2020, arXiv 2006.16668), section 3: an all-to-all before the experts and one behind them.
"""

from __future__ import annotations

from labkit.theory.context import Sent
from labkit.theory.models import ModelConfig


def dispatch_sent(config: ModelConfig, tokens: float, ranks: int, element: int = 2) -> Sent:
    """Bytes that leave one rank with `tokens` tokens in a layer, while every expert is visited as often.

    Each token has a row of h numbers for each of its experts, (n-1)/n of which live elsewhere, and as many
    come back; backward sends the gradients of both. ValueError without experts, or where n does not divide
    them.
    """
    if config.mixture is None:
        raise ValueError(f"{config.name} has no experts: expected a model with a mixture")
    if ranks < 1 or config.mixture.num_experts % ranks:
        raise ValueError(
            f"expected a number of ranks that divides num_experts {config.mixture.num_experts}, got {ranks}"
        )
    rows = tokens * config.mixture.active_experts * (ranks - 1) / ranks
    once = 2 * element * rows * config.hidden
    return Sent(once, once)
