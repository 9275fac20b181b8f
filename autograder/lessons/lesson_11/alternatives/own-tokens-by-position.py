"""Positions counted from either end by torch; pairs from the first and last position of each half."""

import torch


def own_tokens(sequence: int, rank: int, ranks: int) -> list[int]:
    size = sequence // (2 * ranks)
    if size * 2 * ranks != sequence:
        raise ValueError(f"{sequence} tokens cannot be cut into two chunks for each of {ranks} ranks")
    front = torch.arange(size) + rank * size
    return torch.cat([front, sequence - (rank + 1) * size + torch.arange(size)]).tolist()


def block_pairs(rank: int, source: int, ranks: int) -> list[tuple[int, int, bool]]:
    mine, theirs = own_tokens(2 * ranks, rank, ranks), own_tokens(2 * ranks, source, ranks)
    return [(i, j, mine[i] == theirs[j]) for i in range(2) for j in range(2) if mine[i] >= theirs[j]]
