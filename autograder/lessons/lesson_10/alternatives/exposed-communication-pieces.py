from itertools import pairwise


def exposed_communication(
    compute: Sequence[tuple[float, float]], communication: Sequence[tuple[float, float]]
) -> float:
    """Between two moments at which anything begins or ends, all is as it is in their middle."""
    computes, communicates = set(compute), set(communication)
    moments = sorted({moment for stretch in computes | communicates for moment in stretch})

    def goes_on(stretches: set[tuple[float, float]], middle: float) -> bool:
        return any(begin < middle < end for begin, end in stretches)

    pieces = [(a, b, (a + b) / 2) for a, b in pairwise(moments)]
    return sum(b - a for a, b, m in pieces if goes_on(communicates, m) and not goes_on(computes, m))
