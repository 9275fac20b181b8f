def exposed_communication(
    compute: Sequence[tuple[float, float]], communication: Sequence[tuple[float, float]]
) -> float:
    marks = []
    for which, stretches in enumerate((compute, communication)):
        for begin, end in stretches:
            marks += [(begin, which, 1), (end, which, -1)]
    open_now, total, before = [0, 0], 0, None
    for at, which, change in sorted(marks):
        if open_now[1] and not open_now[0]:
            total += at - before
        open_now[which] += change
        before = at
    return total
