"""Exact fractions; an n-th of the sequence, what it weighs, and how much of it leaves."""

from fractions import Fraction


def context_bytes(
    way: str,
    sequence: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    ranks: int,
    backward: bool = False,
    element: int = 2,
) -> float:
    divided = {"ring": [sequence], "ulysses": [sequence, heads, kv_heads]}
    if way not in divided:
        raise ValueError(f"no such way: {way}")
    if any(number % ranks for number in divided[way]):
        raise ValueError(f"{way}: {ranks} ranks do not divide all of {divided[way]}")
    if ranks == 1:
        return 0.0
    numbers = Fraction(sequence, ranks) * head_size
    if way == "ulysses":
        return float(numbers * 2 * (heads + kv_heads) * Fraction(ranks - 1, ranks) * element)
    times = 4 * ranks - 2 if backward else 2 * ranks - 2
    return float(numbers * kv_heads * times * element)
