"""The last micro-batch goes first, on every rank alike; two iterators, one drained by the other."""

from itertools import islice, product


def interleaved_schedule(rank: int, num_ranks: int, num_micro_batches: int, num_chunks: int) -> list[Action]:
    groups, rest = divmod(num_micro_batches, num_ranks)
    if rest:
        raise ValueError(f"{num_micro_batches} micro-batches do not come in groups of {num_ranks}")

    def through(kind: str, chunks: range):
        for group, chunk, place in product(range(groups), chunks, range(num_ranks)):
            number = num_micro_batches - 1 - group * num_ranks - place
            yield Action(kind, rank + chunk * num_ranks, number)

    ahead = through("forward", range(num_chunks))
    back = through("backward", range(num_chunks)[::-1])
    actions = list(islice(ahead, 2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks))
    for forward in ahead:
        actions += forward, next(back)
    return [*actions, *back]
