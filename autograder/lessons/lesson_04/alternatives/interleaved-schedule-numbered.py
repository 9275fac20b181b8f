"""The k-th chunk of a rank by division, as Megatron-LM numbers them."""

from labkit.theory.schedule import Action


def interleaved_schedule(rank: int, num_ranks: int, num_micro_batches: int, num_chunks: int) -> list[Action]:
    if num_micro_batches % num_ranks:
        raise ValueError(f"{num_micro_batches} micro-batches are no multiple of {num_ranks} ranks")
    total = num_micro_batches * num_chunks

    def kth(k: int, kind: str) -> Action:
        group, within = divmod(k, num_ranks * num_chunks)
        chunk, i = divmod(within, num_ranks)
        chunk = chunk if kind == "forward" else num_chunks - 1 - chunk
        return Action(kind, chunk * num_ranks + rank, group * num_ranks + i)

    return in_turn(
        [kth(k, "forward") for k in range(total)],
        [kth(k, "backward") for k in range(total)],
        min(total, 2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks),
    )
