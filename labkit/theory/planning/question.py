"""What is asked of the planner, and what a price means for the whole training."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.theory.parameters import count_parameters
from labkit.theory.planning.cluster import Cluster
from labkit.theory.planning.job import Job
from labkit.theory.planning.search import Choice, Priced, choose
from labkit.theory.planning.software import Software

DAY = 86_400.0


@dataclass(frozen=True)
class Question:
    """What was asked: a job on a cluster with a framework.

    tokens: of the whole training, 0 where unknown.  expert: ranks that share a layer's experts out; None
    where the search may choose.
    """

    job: Job
    cluster: Cluster
    software: Software
    tokens: float = 0.0
    expert: int | None = None

    def choose(self) -> Choice:
        """The plans to measure. ValueError where there is none."""
        return choose(self.job, self.cluster, self.software, expert=self.expert)

    def days(self, plan: Priced) -> float:
        """Of the whole training."""
        return self.tokens / (plan.tokens_per_gpu * self.cluster.num_gpus) / DAY

    def gpu_hours(self, plan: Priced) -> float:
        """Of the whole training."""
        return self.days(plan) * 24 * self.cluster.num_gpus

    def heading(self) -> str:
        """The question in one line."""
        job, cluster = self.job, self.cluster
        active = count_parameters(job.model).active
        nodes = "node" if cluster.nodes == 1 else "nodes"
        visited = f", {active / 1e9:.3g} active" if job.model.mixture else ""
        return (
            f"{job.model.name} ({job.num_params / 1e9:.3g} billion parameters{visited}) on "
            f"{cluster.nodes} {nodes} of {cluster.gpus_per_node} x {cluster.gpu.name}: sequences of "
            f"{job.sequence}, {job.batch} a step ({job.tokens / 2**20:.3g} Mi tokens), {job.recipe.name}, "
            f"as {self.software.name} runs it"
        )
