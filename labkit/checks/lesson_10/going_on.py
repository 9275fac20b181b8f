"""Whether a rank goes on with backward while a call of its is under way, however it would wait: in each step
that is looked at, the others come to that call only when one rank has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from random import Random

import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.exercise import Evidence, Finding
from labkit.checks.rank import Rank
from labkit.record.replay import Act
from labkit.torch_private import job_store

STEPS = range(1, 5)  # that are looked at; in the first a program may set itself up
ENOUGH = 3  # steps: half of the bytes may be waited for at once, and chance may have it look at these alone
PATIENCE = 2.0  # seconds; a backward pass takes thousandths


class _Turns:
    """At a parameter drawn for each step, where its gradient comes, all ranks but one stop, until that rank
    has come to another gradient with a call more, or to the last one: after backward it may wait.
    """

    def __init__(self, rank: Rank, net: nn.Module, acts: Sequence[Act]) -> None:
        self.came: list[int] = []  # steps in which this rank was the one
        self.gave_up: list[int] = []  # steps in which it stopped until its patience was over
        self._rank, self._acts = rank, acts
        self._parameters = list(net.parameters())
        draw, sizes = Random(f"10/turns/{rank.case.seed}"), [p.numel() for p in self._parameters]
        self._places = {step: draw.choices(range(len(sizes)), sizes)[0] for step in STEPS}
        self._steps = [0] * len(sizes)  # of each parameter, how many gradients it has had
        self._calls_before = 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Inside the block, gradients of the net are looked at before any hook that is set there."""
        hooks = [p.register_hook(self._looking(number)) for number, p in enumerate(self._parameters)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _looking(self, number: int) -> object:
        def look(_: Tensor) -> None:
            step = self._steps[number]
            self._steps[number] += 1
            if step not in STEPS:
                return
            if self._rank.rank == step % self._rank.world_size:
                self._go_on(step, number)
            elif number == self._places[step]:
                self._stop(step)

        return look

    def _go_on(self, step: int, number: int) -> None:
        calls = sum(act.kind == "start" for act in self._acts)
        if number == self._places[step]:
            self.came.append(step)
            self._calls_before = calls
        past = step in self.came and calls > self._calls_before
        if past or min(self._steps) > step:
            job_store().set(self._name(step), "")

    def _stop(self, step: int) -> None:
        try:
            job_store().wait([self._name(step)], timedelta(seconds=PATIENCE))
        except dist.DistStoreError:  # the time is over
            self.gave_up.append(step)

    def _name(self, step: int) -> str:
        return f"labkit: turn {step} of {self._rank.group.group_name}"


@contextlib.contextmanager
def taking_turns(rank: Rank, net: nn.Module, acts: Sequence[Act]) -> Iterator[None]:
    """Facts: came, the steps in which this rank was the one to go on; gave_up, those in which it waited in
    vain for the one that was. acts: of this rank, as they grow.
    """
    turns = _Turns(rank, net, acts)
    with turns.taken():
        yield
    rank.fact("came", list[object](turns.came))
    rank.fact("gave_up", list[object](turns.gave_up))


def goes_on(evidence: Evidence) -> Iterator[Finding]:
    """In one of the steps that were looked at, at least; nothing is found where these were too few."""
    looked_at, stood = ({step for a in evidence.answers for step in a.facts[f]} for f in ("came", "gave_up"))
    if len(looked_at) >= ENOUGH:
        told = "backward that goes on while a call is under way, also where another rank comes to it later"
        seen = f"it stands still until the others come, in each of the {len(looked_at)} steps looked at"
        yield Finding(not looked_at <= stood, told, seen)
