def clocks_ahead(ends: Sequence[Sequence[float]]) -> list[float]:
    ahead = []
    for own in ends:
        apart = sorted(own[k] - ends[0][k] for k in range(len(own)))
        middle = len(apart) // 2
        if not apart:
            ahead.append(0.0)
        elif len(apart) % 2:
            ahead.append(apart[middle])
        else:
            ahead.append((apart[middle - 1] + apart[middle]) / 2)
    return ahead


def find_stragglers(
    starts: Sequence[Sequence[float]], ends: Sequence[Sequence[float]]
) -> list[tuple[int, float]]:
    ahead = clocks_ahead(ends)
    result = []
    for k in range(len(starts[0])):
        came = {rank: own[k] - ahead[rank] for rank, own in enumerate(starts)}
        late = max(came, key=lambda rank: (came[rank], -rank))
        result.append((late, len(came) * came[late] - sum(came.values())))
    return result
