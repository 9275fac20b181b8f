"""The planner against measured runs: memory, the choice of a plan, and step time.

    python benchmarks/planner.py [--json] [--data FILE]

Memory and choice: finished runs of nanotron (benchmarks/data; --data scores another file of the same form).
Every run counts in the first figure of each kind. Step time: SC21 table 1 and Korthikanti 2022 table 5, one
number fitted on one of the two and tested on the other.

The plan is chosen among the measured plans of one model on one number of nodes. Regret: the share of the
tokens per second of the fastest of them that the chosen one loses. Three rules of thumb choose beside it,
with the same memory model to say what fits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from _common import Row, arguments, median, report
from _measured_runs import OTHER_UNIT, VISIBLE, Run, read_runs
from _published_steps import fitted_efficiency, korthikanti_steps, mean_error, sc21_steps

from labkit.theory.memory import TrainingPlan, worst_stage
from labkit.theory.models import preset
from labkit.theory.planning import Cluster, Job, choose
from labkit.theory.planning.feasible import memory_limit
from labkit.theory.recipes import NANOTRON as NANOTRON_RECIPE
from labkit.theory.units import GIB

Chooser = Callable[[list[Run]], Run]
DRAWS = 10_000


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
    plain = mean([abs(composed_theory(run)) for run in runs])
    size, other_size = mean([abs(e) for e in errors]), mean([abs(e) for e in other])
    told = f"{len(runs)} runs, none left out, printed GB read as GiB"
    return [
        bound("memory, mean error", size, 3.0, "GiB", told),
        bound("memory, median bias", median(errors), 1.0, "GiB", told),
        beside("memory, mean error", size, plain, "GiB", "the formulas alone", told),
        beside("memory, mean error, read as 10^9 bytes", other_size, plain, "GiB", "the formulas alone"),
        Row("memory, median bias, read as 10^9 bytes", median(other), None, "GiB", None, None),
    ]


# ---- choice


def fitting(runs: list[Run]) -> list[Run]:
    """Those predicted to leave a tenth of the memory free."""
    return [run for run in runs if run.predicted_bytes <= memory_limit(run.cluster)] or runs


def planned(runs: list[Run]) -> Run:
    """The fastest of those that the planner's search would look at: see labkit.theory.planning.search."""
    looked_at = [run for run in fitting(runs) if run.plan.tensor <= run.cluster.gpus_per_node]
    in_pipelines = [run for run in looked_at if run.plan.pipeline == 1 or run.plan.zero == 1]
    return max(in_pipelines or looked_at or runs, key=lambda run: run.predicted_tokens)


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
    for name, theirs in others.items():
        gain = [b - a for a, b in zip(ours, theirs, strict=True)]
        note = f"median {100 * median(theirs):.1f}%; mean gain, {interval(gain, mean)}"
        rows.append(beside("regret, mean", 100 * mean(ours), 100 * mean(theirs), "%", name, note))
    return rows + [_group_row(group) for group in groups]


def _group_row(group: list[Run]) -> Row:
    chosen, best = planned(group), max(group, key=lambda run: run.tokens)
    model, nodes = group[0].group
    note = f"chose {chosen.plan}; fastest {best.plan}"
    return Row(
        f"regret, {model} on {nodes} nodes", 100 * regret(chosen, group), None, "%", None, None, "", note
    )


# ---- time


def time_rows(runs: list[Run]) -> list[Row]:
    ratios = [max(run.predicted_seconds / run.seconds, run.seconds / run.predicted_seconds) for run in runs]
    fast = [
        ratio
        for group in groups_of(runs)
        for run, ratio in zip(
            group,
            (max(r.predicted_seconds / r.seconds, r.seconds / r.predicted_seconds) for r in group),
            strict=True,
        )
        if run.tokens >= max(r.tokens for r in group) / 2
    ]
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
    name = "planner" if options.data == VISIBLE else f"planner_{options.data.stem}"
    report(name, [*memory_rows(runs), *choice_rows(runs), *time_rows(runs), search_row()], options.json)


if __name__ == "__main__":
    main()
