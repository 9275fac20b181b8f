import itertools


def step_breakdown(
    begin: float,
    end: float,
    compute: Sequence[tuple[float, float]],
    calls: Sequence[tuple[float, float, float]],
) -> dict[str, float]:
    if begin > end:
        raise ValueError(f"{begin} > {end}")
    marks = {begin, end, *(m for s in (*compute, *calls) for m in s)}
    moments = sorted(m for m in marks if begin <= m <= end)
    parts = dict.fromkeys(("compute", "exposed", "waiting", "idle"), 0)
    for a, b in itertools.pairwise(moments):
        under_way = [(s, e, came) for s, e, came in calls if s <= a and b <= e]
        if any(s <= a and b <= e for s, e in compute):
            kind = "compute"
        elif any(came <= a for _, _, came in under_way):
            kind = "exposed"
        else:
            kind = "waiting" if under_way else "idle"
        parts[kind] += b - a
    return parts
