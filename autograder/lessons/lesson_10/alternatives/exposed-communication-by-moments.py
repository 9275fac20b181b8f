import itertools


def exposed_communication(
    compute: Sequence[tuple[float, float]], communication: Sequence[tuple[float, float]]
) -> float:
    moments = sorted({m for b, e in [*compute, *communication] for m in (b, e)})
    total = 0
    for begin, end in itertools.pairwise(moments):
        seen = any(b <= begin and e >= end for b, e in communication)
        hidden = any(b <= begin and e >= end for b, e in compute)
        total += (end - begin) * (seen and not hidden)
    return total
