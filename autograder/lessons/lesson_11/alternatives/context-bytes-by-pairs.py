"""Every tensor on its way is counted: a shape, how often it leaves."""

from math import prod


def context_bytes(way, sequence, heads, kv_heads, head_size, ranks, backward=False, element=2):
    if way not in ("ring", "ulysses"):
        raise ValueError(f"expected 'ring' or 'ulysses', got {way!r}")
    if sequence % ranks:
        raise ValueError(f"{ranks} ranks do not divide {sequence} tokens")
    own = sequence // ranks
    if way == "ring":
        leaving = [((kv_heads, own, head_size), 2 * (ranks - 1))]
        if backward and ranks > 1:
            leaving.append(((kv_heads, own, head_size), 2 * ranks))
    else:
        for kind in (heads, kv_heads):
            if kind % ranks:
                raise ValueError(f"{ranks} ranks do not divide {kind} heads")
        piece = own, head_size
        leaving = [((kind // ranks, *piece), 2 * (ranks - 1)) for kind in (heads, kv_heads)]
    return float(sum(prod(shape) * times * element for shape, times in leaving))
