"""All chunks sorted by group, chunk and micro-batch; the turns are taken here."""

from labkit.theory.schedule import Action


def interleaved_schedule(rank: int, num_ranks: int, num_micro_batches: int, num_chunks: int) -> list[Action]:
    if num_micro_batches % num_ranks != 0:
        raise ValueError("the micro-batches do not make whole groups")
    pairs = [(i, chunk) for i in range(num_micro_batches) for chunk in range(num_chunks)]
    up = sorted(pairs, key=lambda p: (p[0] // num_ranks, p[1], p[0]))
    down = sorted(pairs, key=lambda p: (p[0] // num_ranks, -p[1], p[0]))
    forwards = [Action("forward", rank + num_ranks * chunk, i) for i, chunk in up]
    backwards = [Action("backward", rank + num_ranks * chunk, i) for i, chunk in down]
    warm_up = min(len(pairs), (num_chunks - 1) * num_ranks + 2 * (num_ranks - 1 - rank))
    actions = forwards[:warm_up]
    for number, forward in enumerate(forwards[warm_up:]):
        actions += [forward, backwards[number]]
    return actions + backwards[len(pairs) - warm_up :]
