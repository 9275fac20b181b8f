"""Positions are cut into chunks by torch; pairs by three cases, the diagonal ones last."""

import torch


def own_tokens(sequence: int, rank: int, ranks: int) -> list[int]:
    length, rest = divmod(sequence, 2 * ranks)
    if rest:
        raise ValueError(f"{sequence} tokens cannot be cut into two chunks for each of {ranks} ranks")
    chunks = torch.arange(sequence).view(2 * ranks, length)
    return torch.cat((chunks[rank], chunks[-1 - rank])).tolist()


def block_pairs(rank: int, source: int, ranks: int) -> list[tuple[int, int, bool]]:
    if source < rank:
        return [(1, 0, False), (0, 0, False)]
    if source > rank:
        return [(1, 1, False), (1, 0, False)]
    return [(1, 0, False), (1, 1, True), (0, 0, True)]
