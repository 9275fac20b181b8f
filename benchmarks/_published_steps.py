"""Published step times of GPT models on A100, and the planner's with one number fitted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit.theory.flops import narayanan_flops
from labkit.theory.models import gpt
from labkit.theory.planning import MEGATRON, Cluster, Job, Plan
from labkit.theory.planning.step import step_time
from labkit.theory.recipes import MEGATRON as MEGATRON_RECIPE

SEQUENCE, VOCABULARY = 2048, 51_200

# Narayanan et al., SC21 (arXiv 2104.04473), table 1; micro-batches and chunks from its repository's scripts:
# heads, hidden, layers, t, p, GPUs, batch, micro-batch, chunks, TFLOP/s a GPU (full recomputation counted)
SC21 = (
    (24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
    (32, 3072, 30, 2, 1, 64, 512, 16, 1, 138),
    (32, 4096, 36, 4, 1, 128, 512, 16, 1, 142),
    (48, 6144, 40, 8, 1, 256, 1024, 8, 1, 135),
    (64, 8192, 48, 8, 2, 512, 1536, 4, 1, 138),
    (80, 10_240, 60, 8, 4, 1024, 1792, 2, 3, 140),
    (96, 12_288, 80, 8, 8, 1536, 2304, 2, 2, 148),
    (128, 16_384, 96, 8, 16, 1920, 2160, 1, 2, 155),
    (128, 20_480, 105, 8, 35, 2520, 2520, 1, 3, 163),
    (160, 25_600, 128, 8, 64, 3072, 3072, 1, 1, 163),
)
# Korthikanti et al. 2022 (arXiv 2205.05198), tables 3 and 5: heads, hidden, layers, t, p, batch, micro-batch,
# chunks, seconds with full recomputation, seconds with sequence parallelism and selective recomputation
KORTHIKANTI = (
    (64, 6144, 48, 8, 1, 4, 4, 1, 1.42, 1.10),
    (96, 12_288, 96, 8, 8, 64, 1, 3, 18.13, 13.75),
    (128, 20_480, 105, 8, 35, 280, 1, 3, 49.05, 37.83),
    (160, 25_600, 128, 8, 64, 512, 1, 1, 94.42, 71.49),
)


@dataclass(frozen=True)
class Step:
    """One published step."""

    job: Job
    plan: Plan
    seconds: float

    @property
    def cluster(self) -> Cluster:
        """DGX A100 in a fat tree, 25 GB/s of network a GPU."""
        return Cluster.of("A100 80 GB", self.plan.num_gpus // 8, network=25e9, fabric="full")

    def error(self, efficiency: float) -> float:
        """Predicted over published, less one."""
        software = replace(MEGATRON, matmul_efficiency=efficiency)
        return step_time(self.job, self.plan, self.cluster, software).total / self.seconds - 1


def _job(heads: int, hidden: int, layers: int, batch: int) -> Job:
    return Job(gpt(layers, hidden, heads), SEQUENCE, batch, MEGATRON_RECIPE, "explicit")


def sc21_steps() -> list[Step]:
    """Table 1 of SC21; the seconds follow from its rates and its equation 3."""
    steps = []
    for heads, hidden, layers, t, p, gpus, batch, micro, chunks, rate in SC21:
        flops = narayanan_flops(layers, hidden, VOCABULARY, SEQUENCE, batch)
        plan = Plan(gpus // (t * p), t, p, micro, 0, chunks, 1, "full", False)
        steps.append(Step(_job(heads, hidden, layers, batch), plan, flops / (gpus * rate * 1e12)))
    return steps


def korthikanti_steps() -> list[Step]:
    """Table 5: each model with full recomputation, and with what the paper presents."""
    steps = []
    for heads, hidden, layers, t, p, batch, micro, chunks, full, present in KORTHIKANTI:
        plan, job = Plan(1, t, p, micro, 0, chunks, 1, "full", False), _job(heads, hidden, layers, batch)
        better = replace(plan, recompute="selective", sequence_parallel=True)
        steps += [Step(job, plan, full), Step(job, better, present)]
    return steps


def mean_error(steps: list[Step], efficiency: float) -> float:
    """Mean of the sizes of the errors."""
    return sum(abs(step.error(efficiency)) for step in steps) / len(steps)


def fitted_efficiency(steps: list[Step]) -> float:
    """The share of peak that large products reach, to a tenth of a percent: the one number that is fitted."""
    return min((part / 1000 for part in range(550, 951)), key=lambda share: mean_error(steps, share))
