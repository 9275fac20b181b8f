def step_breakdown(
    begin: float,
    end: float,
    compute: Sequence[tuple[float, float]],
    calls: Sequence[tuple[float, float, float]],
) -> dict[str, float]:
    if end < begin:
        raise ValueError("the step ends before it begins")

    def covered(*lists: Sequence[tuple[float, float]]) -> float:
        total, reached = 0, begin
        for b, e in sorted((max(b, begin), min(e, end)) for stretches in lists for b, e in stretches):
            if e > reached and e > b:
                total += e - max(b, reached)
                reached = e
        return total

    moving = [(max(b, came), e) for b, e, came in calls]
    whole = [(b, e) for b, e, _ in calls]
    computing, with_moving, busy = covered(compute), covered(compute, moving), covered(compute, whole)
    return {
        "idle": end - begin - busy,
        "waiting": busy - with_moving,
        "exposed": with_moving - computing,
        "compute": computing,
    }
