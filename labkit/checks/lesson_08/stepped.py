"""How much of a model the inner optimizer of stage 1 steps: its parameters and its state, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_08.net import net_of, parameters_of
from labkit.checks.rank import Rank
from labkit.checks.shared.company import in_company
from labkit.checks.shared.places import place_of

ROOM = 2  # numbers of padding, beside one for each group
STEPPED = "stepped"  # a fact


class Stepped:
    """The most numbers that an inner optimizer has had, in its parameters and in each entry of its state."""

    def __init__(self) -> None:
        self._most: Counter[str] = Counter()

    def note(self, inner: object) -> None:
        """Nothing of what is no torch optimizer: that it is one is for other judges to say."""
        if isinstance(inner, torch.optim.Optimizer):
            self._most |= _numbers(inner)

    def tell(self, rank: Rank) -> None:
        """Fact: STEPPED, numbers by what they are."""
        rank.fact(STEPPED, dict(self._most))


def _numbers(inner: torch.optim.Optimizer) -> Counter[str]:
    found = Counter(parameters=sum(p.numel() for group in inner.param_groups for p in group["params"]))
    for entries in inner.state.values():
        for name, entry in entries.items():
            found[f"state: {name}"] += entry.numel() if isinstance(entry, Tensor) else 0
    return found


def steps_its_share(evidence: Evidence) -> Iterator[Finding]:
    """Whatever the optimizer, its groups and what is frozen: of what is trained, each rank's inner optimizer
    has a share and a little padding, and as much of each entry of its state.
    """
    net = net_of(evidence.case)
    trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
    groups = len(parameters_of(evidence.case, net)) if evidence.case.params.get("option_groups") else 1
    for answer in in_company(evidence):
        share = -(-trained // place_of(evidence.case, answer.rank).size)
        for name, count in answer.facts[STEPPED].items():
            told = f"optimizer.optimizer, {name}: at most {share} of {trained} numbers, and padding"
            yield Finding(count <= share + groups + ROOM, told, str(count), answer.rank)
