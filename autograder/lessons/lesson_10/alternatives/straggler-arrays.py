import numpy as np


def clocks_ahead(ends: Sequence[Sequence[float]]) -> list[float]:
    moments = np.array(ends, dtype=float)
    if moments.shape[1] == 0:
        return np.zeros(len(moments))
    return np.median(moments - moments[0], axis=1)


def find_stragglers(
    starts: Sequence[Sequence[float]], ends: Sequence[Sequence[float]]
) -> list[tuple[int, float]]:
    came = np.array(starts, dtype=float) - np.array(clocks_ahead(ends))[:, None]
    waits = came.max(axis=0) - came
    return list(zip(came.argmax(axis=0), waits.sum(axis=0), strict=True))
