"""The front half and the back half, reversed, side by side."""

import torch


def own_tokens(sequence: int, rank: int, ranks: int) -> list[int]:
    if sequence % (2 * ranks) != 0:
        raise ValueError(f"expected {2 * ranks} chunks for {ranks} ranks to divide {sequence} tokens")
    chunks = torch.arange(sequence).view(2 * ranks, -1)
    return torch.cat([chunks[rank], chunks.flip(0)[rank]]).tolist()


def block_pairs(rank: int, source: int, ranks: int) -> list[tuple[int, int, bool]]:
    if rank == source:
        return [(0, 0, True), (1, 0, False), (1, 1, True)]
    if source < rank:
        return [(0, 0, False), (1, 0, False)]
    return [(1, 0, False), (1, 1, False)]
