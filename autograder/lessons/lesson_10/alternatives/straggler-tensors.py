def clocks_ahead(ends: Sequence[Sequence[float]]) -> list[float]:
    times = torch.tensor(ends, dtype=torch.float64)
    if times.shape[1] == 0:
        return [0.0] * len(ends)
    return (times - times[0]).quantile(0.5, dim=1).tolist()


def find_stragglers(
    starts: Sequence[Sequence[float]], ends: Sequence[Sequence[float]]
) -> list[tuple[int, float]]:
    came = (
        torch.tensor(starts, dtype=torch.float64)
        - torch.tensor(clocks_ahead(ends), dtype=torch.float64)[:, None]
    )
    if came.shape[1] == 0:
        return []
    last = came.max(dim=0).values
    ranks = (came == last).to(torch.int8).argmax(dim=0)
    return list(zip(ranks.tolist(), (last - came).sum(dim=0).tolist(), strict=False))
