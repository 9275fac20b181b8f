"""How the planner's numbers are fitted to measured runs, and how those of one model do on the other.

    python benchmarks/planner_fit.py [--json] [--data FILE]

A search along one number at a time, from round values, for the least mean of |log(predicted / measured)|. A
run counts in proportion to its speed among its group, for the planner has to be right about good plans; no
run counts for more than a factor of 1.5, for some are slow for reasons of their own. Memory is not fitted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from _common import Row, arguments, median, report
from _measured_runs import VISIBLE, Run, read_runs
from planner import PRINTED, Chooser, best_printed, groups_of, mean, planned, regret

from labkit.theory.planning import NANOTRON, Software

FITTED = (
    "matmul_efficiency",
    "passes",
    "layer_floor",
    "rank_floor",
    "spread_floor",
    "link_share",
    "between_share",
    "reduce_share",
    "gather_share",
    "hop_seconds",
    "overlap",
    "optimizer_passes",
    "stall",
)
START = replace(
    NANOTRON,
    matmul_efficiency=0.7,
    passes=5.0,
    layer_floor=3e-3,
    rank_floor=0.5e-3,
    spread_floor=1e-3,
    link_share=1.0,
    between_share=1.0,
    reduce_share=1.0,
    gather_share=1.0,
    hop_seconds=1e-6,
    overlap=0.8,
    optimizer_passes=3.0,
    stall=0.1,
)
MOST = {"matmul_efficiency": 0.95, "overlap": 1.0}
WORST = math.log(1.5)
ROUNDS, FIRST_STEP, NEXT_STEP = 4, 0.3, 0.6


def weights_of(runs: list[Run]) -> list[float]:
    """Each run's speed as a share of the fastest of its group."""
    fastest = {group[0].group: max(run.tokens for run in group) for group in groups_of(runs)}
    return [run.tokens / fastest[run.group] for run in runs]


def loss(software: Software, runs: list[Run], weights: list[float]) -> float:
    """The weighted mean of the sizes of the logarithms."""
    errors = [
        min(abs(math.log(replace(run, software=software).predicted_seconds / run.seconds)), WORST)
        for run in runs
    ]
    return sum(w * e for w, e in zip(weights, errors, strict=True)) / sum(weights)


def fit(runs: list[Run], software: Software = START) -> Software:
    """The numbers that come closest, each moved as long as it helps."""
    weights, step = weights_of(runs), FIRST_STEP
    least = loss(software, runs, weights)
    for _ in range(ROUNDS):
        for name in FITTED:
            for factor in (1 + step, 1 / (1 + step)):
                software, least = _moved(software, name, factor, runs, weights, least)
        step *= NEXT_STEP
    return software


def _moved(
    software: Software, name: str, factor: float, runs: list[Run], weights: list[float], least: float
) -> tuple[Software, float]:
    while True:
        value = getattr(software, name) * factor
        if value > MOST.get(name, math.inf):
            return software, least
        other = replace(software, **{name: value})
        found = loss(other, runs, weights)
        if found >= least - 1e-6:
            return software, least
        software, least = other, found


def regrets_with(software: Software, runs: list[Run], choose: Chooser) -> list[float]:
    """Of each group, in percent."""
    groups = groups_of([replace(run, software=software) for run in runs])
    return [100 * regret(choose(group), group) for group in groups]


def rows_of(runs: list[Run]) -> list[Row]:
    rows, found, printed = [], [], []
    for left_out in sorted({run.model for run in runs}):
        software = fit([run for run in runs if run.model != left_out])
        others = [run for run in runs if run.model == left_out]
        theirs, best = (regrets_with(software, others, choose) for choose in (planned, best_printed))
        found, printed = found + theirs, printed + best
        each = ", ".join(f"{lost:.1f}" for lost in theirs)
        rows.append(
            Row(f"regret of {left_out}, left out of the fit", mean(theirs), None, "%", None, None, "", each)
        )
        each = ", ".join(f"{lost:.1f}" for lost in best)
        rows.append(Row(f"{rows[-1].name}, best of {PRINTED}", mean(best), None, "%", None, None, "", each))
    rows += [
        Row("regret, each model left out once, median", median(found), None, "%", None, None),
        Row("regret, each model left out once, mean", mean(found), None, "%", None, None),
        Row(
            f"regret, each model left out once, best of {PRINTED}, median",
            median(printed),
            None,
            "%",
            None,
            None,
        ),
        Row(
            f"regret, each model left out once, best of {PRINTED}, mean", mean(printed), None, "%", None, None
        ),
    ]
    fitted, weights = fit(runs), weights_of(runs)
    told = ", ".join(f"{name} {getattr(fitted, name):.3g}" for name in FITTED)
    ours = loss(NANOTRON, runs, weights)
    note = f"the planner's numbers; a fit of all runs from round values: {told}"
    return [*rows, Row("loss", ours, loss(fitted, runs, weights), "", None, None, "that fit", note)]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=VISIBLE)
    options = parser.parse_args()
    name = "planner_fit" if options.data == VISIBLE else f"planner_fit_{options.data.stem}"
    report(name, rows_of(read_runs(options.data)), options.json)


if __name__ == "__main__":
    main()
