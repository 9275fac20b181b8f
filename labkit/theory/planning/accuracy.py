"""How wrong the planner was on measured runs, to be said with every plan.

`accuracy.json` beside this file is written by benchmarks/planner.py, and by nobody else.
"""

from __future__ import annotations

import statistics
from functools import cache
from pathlib import Path

import msgspec

BAD = 0.1  # a share of the tokens a second that no first choice should lose on average


class Group(msgspec.Struct, frozen=True):
    """The measured plans of one model on one number of nodes.

    time_factor: median factor between predicted and measured step times.  regret: share of the fastest
    plan's tokens a second that the plan placed first lost; best_of_three: the same of the fastest of the
    three that the search would print.  left_out_...: these, where the planner's numbers had been fitted on
    the other model's runs alone.
    """

    model: str
    nodes: int
    time_factor: float
    regret: float
    best_of_three: float
    left_out_regret: float
    left_out_best_of_three: float


class Accuracy(msgspec.Struct, frozen=True):
    """Figures over finished runs of 8 H100 a node with nanotron.

    memory: mean error in GiB.  time_factor: median factor between predicted and measured step times, of all
    runs, and of those at least half as fast as the fastest of their group.
    """

    runs: int
    memory: float
    time_factor: float
    fast_time_factor: float
    groups: tuple[Group, ...]

    @property
    def regrets(self) -> list[float]:
        """Of the plan placed first, one a group."""
        return [group.regret for group in self.groups]

    def on(self, nodes: int) -> list[Group]:
        """The groups on that many nodes."""
        return [group for group in self.groups if group.nodes == nodes]

    @property
    def measured_nodes(self) -> list[int]:
        """Every number of nodes there are runs on, ascending."""
        return sorted({group.nodes for group in self.groups})

    def lost_on(self, nodes: int) -> float:
        """Mean regret of the plan placed first on that many nodes."""
        return statistics.fmean(group.regret for group in self.on(nodes))

    @property
    def good_to(self) -> int:
        """The most nodes up to which no number of nodes lost more than `BAD` on average."""
        bad = [nodes for nodes in self.measured_nodes if self.lost_on(nodes) > BAD]
        return max(nodes for nodes in self.measured_nodes if not bad or nodes < bad[0])

    def __str__(self) -> str:
        most = self.measured_nodes[-1]
        models = " and ".join(sorted({group.model for group in self.groups}))
        left_out = [group.left_out_regret for group in self.groups]
        unseen = f"{statistics.median(left_out):.0%} (mean {statistics.fmean(left_out):.0%})"
        near = statistics.fmean(group.regret for group in self.groups if group.nodes <= self.good_to)
        return (
            f"On {self.runs} measured runs ({models} models, 1 to {most} nodes of 8 H100, nanotron) memory "
            f"was {self.memory:.1f} GiB off on average, and a step's time off by a factor of "
            f"{self.time_factor:.2f} (median; {self.fast_time_factor:.2f} for the faster runs). Of the plans "
            f"measured, the one placed first lost {statistics.median(self.regrets):.1%} of the fastest one's "
            f"tokens per second (median of {len(self.groups)} groups of a model on a number of nodes; mean "
            f"{statistics.fmean(self.regrets):.0%}: {near:.0%} on up to {self.good_to} nodes, "
            f"{self.lost_on(most):.0%} on {most}); with the planner's numbers fitted on the other model "
            f"alone, {unseen}. ZeRO 2 and 3, recomputation, chunks, context parallelism and models with "
            f"experts were not among them. Measure before you believe."
        )

    def warning(self, nodes: int) -> str:
        """What to know before a plan for so many nodes is believed; empty where choices were good."""
        if nodes <= self.good_to:
            return ""
        bad = min(measured for measured in self.measured_nodes if measured > self.good_to)
        near = max((measured for measured in self.measured_nodes if measured <= nodes), default=bad)
        groups = self.on(max(near, bad))
        where = groups[0].nodes
        lost = _shares([group.regret for group in groups])
        three = _shares([group.best_of_three for group in groups])
        unseen = _shares([group.left_out_best_of_three for group in groups])
        factors = " and ".join(f"{group.time_factor:.1f}" for group in groups)
        here = "" if nodes == where else f" (on {nodes} nothing was measured)"
        return (
            f"Do not trust the order on {nodes} nodes. In measured runs on {where}{here} the plan placed "
            f"first lost {lost} of the fastest one's tokens per second, and predicted step times were off by "
            f"factors of {factors} (medians). The fastest of the three plans that would have been printed "
            f"lost {three}, but {unseen} with numbers fitted on the other model's runs alone: measure all "
            f"three, and others."
        )


def _shares(shares: list[float]) -> str:
    return " and ".join(f"{share:.0%}" for share in shares)


@cache
def measured() -> Accuracy:
    """The figures of the last recorded run of the benchmark."""
    return msgspec.json.decode(Path(__file__).with_name("accuracy.json").read_bytes(), type=Accuracy)
