def clocks_ahead(ends: Sequence[Sequence[float]]) -> list[float]:
    ahead = []
    for own in ends:
        differences = sorted(mine - first for mine, first in zip(own, ends[0], strict=True))
        n = len(differences)
        ahead.append((differences[(n - 1) // 2] + differences[n // 2]) / 2 if n else 0)
    return ahead


def find_stragglers(
    starts: Sequence[Sequence[float]], ends: Sequence[Sequence[float]]
) -> list[tuple[int, float]]:
    ahead = clocks_ahead(ends)
    found = []
    for came in zip(*starts, strict=True):
        # how much later than rank 0 each came: small numbers, so that clocks hours apart lose no digits
        late = [(time - came[0]) - clock for time, clock in zip(came, ahead, strict=True)]
        who = max(range(len(late)), key=lambda rank: (late[rank], -rank))
        found.append((who, len(late) * late[who] - sum(late)))
    return found
