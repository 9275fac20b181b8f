"""How wrong the planner was on measured runs (benchmarks/planner.py), to be said with every plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Accuracy:
    """Figures over finished runs of a 1B and an 8B model on 1 to 64 nodes of 8 H100 with nanotron.

    memory: mean error in GiB.  time_factor: median factor between predicted and measured step times, of all
    runs, and of those at least half as fast as the fastest of their group.  regret: share of the tokens a
    second that the chosen plan lost, median and mean over groups of one model on one number of nodes;
    left_out_regret: the same where the planner's numbers had been fitted on the other model's runs alone.
    """

    runs: int
    groups: int
    memory: float
    time_factor: float
    fast_time_factor: float
    median_regret: float
    mean_regret: float
    median_left_out_regret: float
    mean_left_out_regret: float
    worst_nodes: int

    def __str__(self) -> str:
        left_out = f"{self.median_left_out_regret:.0%} and {self.mean_left_out_regret:.0%}"
        return (
            f"On {self.runs} measured runs (1B and 8B models, 1 to 64 nodes of 8 H100, nanotron) memory was "
            f"{self.memory:.1f} GiB off on average, and a step's time off by a factor of "
            f"{self.time_factor:.2f} (median; {self.fast_time_factor:.2f} for the faster runs). The plan "
            f"chosen among those measured was {self.median_regret:.1%} slower than the fastest (median of "
            f"{self.groups} groups; mean {self.mean_regret:.0%}, nearly all of it on {self.worst_nodes} "
            f"nodes); with the planner's numbers fitted on the other model alone, {left_out}. ZeRO 2 and 3, "
            f"recomputation, chunks, context parallelism and models with experts were not among them. "
            f"Measure before you believe."
        )


MEASURED = Accuracy(
    runs=555,
    groups=8,
    memory=2.8,
    time_factor=1.15,
    fast_time_factor=1.06,
    median_regret=0.002,
    mean_regret=0.18,
    median_left_out_regret=0.05,
    mean_left_out_regret=0.20,
    worst_nodes=64,
)
