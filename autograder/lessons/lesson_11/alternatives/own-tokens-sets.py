"""Each position is asked whose it is; pairs come from the positions themselves."""


def own_tokens(sequence: int, rank: int, ranks: int) -> list[int]:
    if sequence % (2 * ranks) != 0:
        raise ValueError(f"expected a sequence that twice {ranks} ranks divide, got {sequence}")
    length = sequence // (2 * ranks)
    return [p for p in range(sequence) if p // length in (rank, 2 * ranks - rank - 1)]


def block_pairs(rank: int, source: int, ranks: int) -> list[tuple[int, int, bool]]:
    # With one token to a chunk a chunk is a position.
    mine, theirs = own_tokens(2 * ranks, rank, ranks), own_tokens(2 * ranks, source, ranks)
    return [
        (half, other, query == key)
        for other, key in enumerate(theirs)
        for half, query in enumerate(mine)
        if query >= key
    ]
