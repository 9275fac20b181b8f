"""What attention sends when n ranks share each sequence: a ring of keys and values, or heads for tokens.

Ring Attention (Liu 2023, arXiv 2310.01889) and DeepSpeed-Ulysses (Jacobs 2023, arXiv 2309.14509), one layer
and one rank; a heads and k key-value heads of d numbers, s tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.theory.models import ModelConfig


@dataclass(frozen=True)
class Sent:
    """Bytes that leave one rank in a layer's forward and in its backward."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        """Both."""
        return self.forward + self.backward


def ring_sent(config: ModelConfig, sequence: int, micro_batch: int, ranks: int, element: int = 2) -> Sent:
    """Keys and values go n - 1 steps in forward and again in backward, their gradients n: those come home.

    With a tensor a message that is 2 (n - 1) and 4n - 2 messages of s/n tokens of k heads.
    """
    _check_even("sequence", sequence, ranks)
    message = element * micro_batch * (sequence // ranks) * config.kv_width
    return Sent(2 * (ranks - 1) * message, (4 * ranks - 2) * message if ranks > 1 else 0)


def ulysses_sent(config: ModelConfig, sequence: int, micro_batch: int, ranks: int, element: int = 2) -> Sent:
    """All-to-alls of queries, keys, values and the output: (n-1)/n of 2(a + k) d numbers a token of s/n.

    With a = k that is the paper's 4sh/n. Backward sends the gradients of the same four back.
    ValueError where n does not divide both kinds of heads: a head is not cut.
    """
    _check_even("sequence", sequence, ranks)
    _check_even("num_heads", config.num_heads, ranks)
    _check_even("num_kv_heads", config.num_kv_heads, ranks)
    numbers = 2 * (config.query_width + config.kv_width) * micro_batch * (sequence // ranks)
    once = element * numbers * (ranks - 1) / ranks
    return Sent(once, once)


def least_ring_block(flops: float, bandwidth: float) -> float:
    """Tokens a rank needs for its blocks' products to hide its messages: F/B.

    A block of c tokens takes 4dc^2 operations and 4cd bytes of 16-bit keys and values (arXiv 2310.01889,
    section 3). flops: a second of one GPU. bandwidth: bytes a second to the next.
    """
    return flops / bandwidth


def _check_even(what: str, size: int, ranks: int) -> None:
    if ranks < 1 or size % ranks:
        raise ValueError(f"expected a number of ranks that divides {what} {size}, got {ranks}")
