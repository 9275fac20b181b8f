def exposed_communication(
    compute: Sequence[tuple[float, float]], communication: Sequence[tuple[float, float]]
) -> float:
    left = joined(communication)
    for begin, end in joined(compute):
        left = [part for b, e in left for part in ((b, min(e, begin)), (max(b, end), e)) if part[1] > part[0]]
    return sum(e - b for b, e in left)


def joined(stretches: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    result = []
    for b, e in sorted(map(tuple, stretches)):
        if result and b <= result[-1][1]:
            result[-1] = (result[-1][0], max(e, result[-1][1]))
        else:
            result.append((b, e))
    return result
