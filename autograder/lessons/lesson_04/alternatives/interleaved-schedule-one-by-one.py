"""The chunk and the micro-batch of the k-th forward are worked out from k, without in_turn."""


def interleaved_schedule(rank, num_ranks, num_micro_batches, num_chunks):
    left = num_micro_batches % num_ranks
    if left:
        raise ValueError(f"{num_micro_batches} micro-batches do not make whole groups of {num_ranks}")
    total = num_micro_batches * num_chunks

    def action(kind, k):
        group, inside = divmod(k, num_ranks * num_chunks)
        chunk, number = divmod(inside, num_ranks)
        if kind == "backward":
            chunk = num_chunks - 1 - chunk
        return Action(kind, rank + chunk * num_ranks, group * num_ranks + number)

    ahead = min(total, 2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks)
    found = [action("forward", k) for k in range(ahead)]
    for k in range(total):
        if ahead + k < total:
            found.append(action("forward", ahead + k))
        found.append(action("backward", k))
    return found
