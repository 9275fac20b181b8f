"""The planner against measured runs: memory, the choice of a plan, and step time.

    python benchmarks/planner.py [--json] [--data FILE]

Memory and choice: finished runs of nanotron (benchmarks/data; --data scores another file of the same form).
Every run counts in the first figure of each kind. Step time: SC21 table 1 and Korthikanti 2022 table 5, one
number fitted on one of the two and tested on the other.

The plan is chosen among the measured plans of one model on one number of nodes. Regret: the share of the
tokens per second of the fastest of them that the chosen one loses. Three rules of thumb choose beside it,
with the same memory model to say what fits. The tool prints three plans to measure: the best of them is
scored too, beside three drawn at random.

A run on the data that lies here also writes what `labkit plan` says of its own accuracy.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from random import Random

import msgspec
from _common import RESULTS, Row, arguments, median, report
from _measured_runs import OTHER_UNIT, VISIBLE, Run, read_runs
from _published_steps import fitted_efficiency, korthikanti_steps, mean_error, sc21_steps

from labkit.theory.memory import TrainingPlan, worst_stage
from labkit.theory.models import preset
from labkit.theory.planning import Cluster, Job, accuracy, choose
from labkit.theory.planning.accuracy import Accuracy, Group
from labkit.theory.planning.feasible import memory_limit
from labkit.theory.recipes import NANOTRON as NANOTRON_RECIPE
from labkit.theory.units import GIB

Chooser = Callable[[list[Run]], Run]
DRAWS = 10_000
SAID = Path(accuracy.__file__).with_name("accuracy.json")
PRINTED = 3  # plans that `labkit plan` prints


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def bound(name: str, ours: float, most: float, unit: str, note: str = "") -> Row:
    """A figure that is to be at most `most`; the ratio says how far below it is."""
    return Row(name, ours, most, unit, most / max(abs(ours), 1e-9), 1.0, "target", note)


def beside(name: str, ours: float, peer: float, unit: str, peer_name: str, note: str = "") -> Row:
    """A figure beside a peer's."""
    return Row(name, ours, peer, unit, peer / max(ours, 1e-9), None, peer_name, note)


# ---- memory


def composed_theory(run: Run) -> float:
    """Error (GiB) of the formulas alone: equal stages, the 20-byte recipe, nothing that a framework adds."""
    plan = TrainingPlan(
        run.job.model,
        run.job.sequence,
        run.plan.micro_batch,
        NANOTRON_RECIPE,
        data_parallel=run.plan.data,
        zero_stage=run.plan.zero,
        tensor_parallel=run.plan.tensor,
        sequence_parallel=run.plan.tensor > 1,
        pipeline_parallel=run.plan.pipeline,
        num_micro_batches=run.micro_batches,
    )
    return worst_stage(plan)[1].total / GIB - run.memory


def memory_rows(runs: list[Run]) -> list[Row]:
    runs = [run for run in runs if run.memory == run.memory]
    errors = [run.memory_error() for run in runs]
    other = [run.memory_error(OTHER_UNIT) for run in runs]
    formulas = [composed_theory(run) for run in runs]
    plain = mean([abs(error) for error in formulas])
    size, other_size = mean([abs(e) for e in errors]), mean([abs(e) for e in other])
    told = f"{len(runs)} runs, none left out, printed GB read as GiB"
    return [
        bound("memory, mean error", size, 3.0, "GiB", told),
        bound("memory, median bias", median(errors), 1.0, "GiB", told),
        beside("memory, mean error", size, plain, "GiB", "the formulas alone", told),
        beside("memory, mean error, read as 10^9 bytes", other_size, plain, "GiB", "the formulas alone"),
        Row("memory, median bias, read as 10^9 bytes", median(other), None, "GiB", None, None),
        Row("memory, median bias of the formulas alone", median(formulas), None, "GiB", None, None),
    ]


# ---- choice


def fitting(runs: list[Run]) -> list[Run]:
    """Those predicted to leave a tenth of the memory free."""
    return [run for run in runs if run.predicted_bytes <= memory_limit(run.cluster)] or runs


def ranked(runs: list[Run]) -> list[Run]:
    """What the planner's search would find among them: the fastest of each grid, the fastest first.

    It looks at what labkit.theory.planning.search looks at, and fastest is what it predicts.
    """
    looked_at = [run for run in fitting(runs) if run.plan.tensor <= run.cluster.gpus_per_node]
    in_pipelines = [run for run in looked_at if run.plan.pipeline == 1 or run.plan.zero == 1]
    grids: dict[tuple[int, int], Run] = {}
    for run in sorted(in_pipelines or looked_at or runs, key=lambda run: -run.predicted_tokens):
        grids.setdefault((run.plan.tensor, run.plan.pipeline), run)
    return list(grids.values())


def planned(runs: list[Run]) -> Run:
    """The plan that the search would print first."""
    return ranked(runs)[0]


def best_printed(runs: list[Run]) -> Run:
    """The fastest, measured, of the plans that the search would print."""
    return max(ranked(runs)[:PRINTED], key=lambda run: run.tokens)


def any_printed(group: list[Run]) -> float:
    """Regret of the fastest of as many of the grids, drawn at random; the mean of all such draws."""
    grids = ranked(group)
    draws = combinations(grids, min(PRINTED, len(grids)))
    return mean([min(regret(run, group) for run in drawn) for drawn in draws])


def takeaways(runs: list[Run]) -> Run:
    """SC21: tensor parallelism up to a node, then pipeline, no more of both than it takes to fit."""
    return min(
        [run for run in fitting(runs) if run.plan.tensor <= 8] or runs,
        key=lambda r: (r.plan.tensor * r.plan.pipeline, -r.plan.tensor, -r.plan.zero, -r.plan.micro_batch),
    )


def least_tensor(runs: list[Run]) -> Run:
    return min(
        fitting(runs),
        key=lambda r: (r.plan.tensor, r.plan.pipeline, -r.plan.zero, -r.plan.micro_batch),
    )


def most_data(runs: list[Run]) -> Run:
    return max(fitting(runs), key=lambda r: (r.plan.data, r.plan.zero, r.plan.micro_batch))


RULES: dict[str, Chooser] = {
    "SC21's takeaways": takeaways,
    "least tensor parallelism that fits": least_tensor,
    "most data parallelism": most_data,
}


def groups_of(runs: list[Run]) -> list[list[Run]]:
    found: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        found.setdefault(run.group, []).append(run)
    return [found[key] for key in sorted(found)]


def regret(chosen: Run, group: list[Run]) -> float:
    return 1 - chosen.tokens / max(run.tokens for run in group)


def regrets(choose: Chooser, groups: list[list[Run]]) -> list[float]:
    return [regret(choose(group), group) for group in groups]


def interval(values: Sequence[float], figure: Callable[[Sequence[float]], float]) -> str:
    """5% to 95% of the figure over groups drawn again with replacement."""
    random = Random(0)
    drawn = sorted(figure(random.choices(values, k=len(values))) for _ in range(DRAWS))
    return f"90% interval {100 * drawn[DRAWS // 20]:.1f} to {100 * drawn[-DRAWS // 20]:.1f}% over groups"


def choice_rows(runs: list[Run]) -> list[Row]:
    groups = groups_of(runs)
    ours = regrets(planned, groups)
    random_plan = [mean([regret(run, group) for run in fitting(group)]) for group in groups]
    others = {name: regrets(rule, groups) for name, rule in RULES.items()} | {"a random plan": random_plan}
    rows = [
        bound("regret, median", 100 * median(ours), 3.0, "%", interval(ours, median)),
        bound("regret, mean", 100 * mean(ours), 10.0, "%", interval(ours, mean)),
    ]
    rows += _printed_rows(groups)
    for name, theirs in others.items():
        gain = [b - a for a, b in zip(ours, theirs, strict=True)]
        note = f"median {100 * median(theirs):.1f}%; mean gain, {interval(gain, mean)}"
        rows.append(beside("regret, mean", 100 * mean(ours), 100 * mean(theirs), "%", name, note))
    return rows + [row for group in groups for row in _group_rows(group)]


def _printed_rows(groups: list[list[Run]]) -> list[Row]:
    """Of who measures all plans that are printed, beside who measures as many of the grids at random."""
    ours, drawn = regrets(best_printed, groups), [any_printed(group) for group in groups]
    name, peer = f"regret, best of the {PRINTED} plans it prints", f"{PRINTED} of its grids at random"
    note = interval(ours, mean) if any(ours) else f"none in all {len(groups)} groups, so no interval"
    return [
        Row(f"{name}, {what}", 100 * figure(ours), 100 * figure(drawn), "%", None, None, peer, note)
        for what, figure in (("median", median), ("mean", mean))
    ]


def _group_rows(group: list[Run]) -> list[Row]:
    chosen, printed, best = planned(group), best_printed(group), max(group, key=lambda run: run.tokens)
    where = "{} on {} nodes".format(*group[0].group)
    grids = [run.plan for run in ranked(group)]
    place = f"{grids.index(printed.plan) + 1} of {len(grids)} grids"
    return [
        _regret_row(where, chosen, group, f"chose {chosen.plan}; fastest {best.plan}"),
        _regret_row(f"best of the {PRINTED} plans it prints, {where}", printed, group, f"placed {place}"),
    ]


def _regret_row(name: str, run: Run, group: list[Run], note: str) -> Row:
    return Row(f"regret, {name}", 100 * regret(run, group), None, "%", None, None, "", note)


# ---- time


def factor(run: Run) -> float:
    """How many times too long or too short a step was predicted."""
    return max(run.predicted_seconds / run.seconds, run.seconds / run.predicted_seconds)


def faster_half(runs: list[Run]) -> list[Run]:
    """Those at least half as fast as their group's fastest."""
    return [
        run
        for group in groups_of(runs)
        for run in group
        if run.tokens >= max(other.tokens for other in group) / 2
    ]


def time_rows(runs: list[Run]) -> list[Row]:
    ratios, fast = [factor(run) for run in runs], [factor(run) for run in faster_half(runs)]
    sc21, korthikanti = sc21_steps(), korthikanti_steps()
    on_korthikanti, on_sc21 = fitted_efficiency(korthikanti), fitted_efficiency(sc21)
    forward = 100 * mean_error(sc21, on_korthikanti)
    back = 100 * mean_error(korthikanti, on_sc21)
    return [
        bound(
            "step time, SC21 table 1",
            forward,
            5.0,
            "%",
            f"one share, {on_korthikanti:.3f}, fitted on the other",
        ),
        bound(
            "step time, Korthikanti table 5", back, 5.0, "%", f"one share, {on_sc21:.3f}, fitted on the other"
        ),
        Row("step time, measured runs, median factor", median(ratios), None, "x", None, None, "", "all runs"),
        Row(
            "step time, measured runs, median factor",
            median(fast),
            None,
            "x",
            None,
            None,
            "",
            f"{len(fast)} runs at least half as fast as their group's fastest",
        ),
    ]


# ---- what the planner says of itself


def accuracy_of(runs: list[Run]) -> Accuracy:
    """What `labkit plan` says with every plan; of models left out, what planner_fit.py recorded."""
    remembered = [run.memory_error() for run in runs if run.memory == run.memory]
    groups = groups_of(runs)
    left_out = zip(_left_out(runs, ""), _left_out(runs, ", best of 3"), strict=True)
    return Accuracy(
        runs=len(runs),
        memory=_said(mean([abs(error) for error in remembered])),
        time_factor=_said(median([factor(run) for run in runs])),
        fast_time_factor=_said(median([factor(run) for run in faster_half(runs)])),
        groups=tuple(_group(*both) for both in zip(groups, left_out, strict=True)),
    )


def _left_out(runs: list[Run], which: str) -> list[float]:
    """Recorded regrets, in the order of `groups_of`, of each model with numbers fitted on the others."""
    recorded = json.loads((RESULTS / "planner_fit.json").read_text())
    notes = {row["name"]: row["note"] for row in recorded["rows"]}
    models = sorted({run.model for run in runs})
    each = [notes[f"regret of {model}, left out of the fit{which}"].split(", ") for model in models]
    return [float(lost) / 100 for found in each for lost in found]


def _group(runs: list[Run], left_out: tuple[float, float]) -> Group:
    return Group(
        *runs[0].group,
        time_factor=_said(median([factor(run) for run in runs])),
        regret=_said(regret(planned(runs), runs)),
        best_of_three=_said(regret(best_printed(runs), runs)),
        left_out_regret=_said(left_out[0]),
        left_out_best_of_three=_said(left_out[1]),
    )


def _said(figure: float) -> float:
    return round(figure, 4)


# ---- search


def search_row() -> Row:
    """A search of 1,024 GPUs with nothing remembered of the one before: another sequence, another job."""
    cluster, seconds = Cluster.of("H100 80 GB", 128), []
    for sequence in (4096, 8192, 16_384):
        job = Job(preset("Llama 3 70B"), sequence, 2**22 // sequence)
        begin = time.perf_counter()
        choose(job, cluster)
        seconds.append(time.perf_counter() - begin)
    return bound("a search over 1,024 GPUs", median(seconds), 1.0, "s", "Llama 3 70B, 4M tokens a step")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=VISIBLE)
    options = parser.parse_args()
    runs = read_runs(options.data)
    if options.data == VISIBLE:
        SAID.write_bytes(msgspec.json.format(msgspec.json.encode(accuracy_of(runs)), indent=1) + b"\n")
    name = "planner" if options.data == VISIBLE else f"planner_{options.data.stem}"
    report(name, [*memory_rows(runs), *choice_rows(runs), *time_rows(runs), search_row()], options.json)


if __name__ == "__main__":
    main()
