"""Whether a rank goes on with backward while a call of its is under way, however it would wait: in each round
of gradients that is looked at, the others come to that call only when one rank has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from random import Random

import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_10.acts import acts_of
from labkit.checks.rank import Rank
from labkit.record.replay import Act
from labkit.torch_private_distributed import job_store

MOST_ROUNDS = 8  # that are looked at; in the first a program may set itself up
ENOUGH = 3  # rounds: chance may look where no call begins
PATIENCE = 2.0  # seconds; a backward pass takes thousandths


class _Turns:
    """At a parameter drawn for each round, where its gradient comes, all ranks but one stop, until that rank
    has come to another gradient with a call more, or to the last one: after backward it may wait.
    """

    def __init__(self, rank: Rank, net: nn.Module, acts: Sequence[Act], rounds: int) -> None:
        self.came: list[
            tuple[int, int, int]
        ] = []  # rounds in which this rank was the one, see `taking_turns`
        self.gave_up: list[int] = []  # rounds in which it stopped until its patience was over
        self._rank, self._acts = rank, acts
        self._parameters = list(net.parameters())
        draw, sizes = Random(f"10/turns/{rank.case.seed}"), [p.numel() for p in self._parameters]
        looked_at = draw.sample(range(1, rounds), min(MOST_ROUNDS, rounds - 1))
        self._places = {number: draw.choices(range(len(sizes)), sizes)[0] for number in looked_at}
        self._rounds = [0] * len(sizes)  # of each parameter, how many gradients it has had
        self._begin: int | None = None  # how many acts there were where this rank came to the place

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
            now = self._rounds[number]
            self._rounds[number] += 1
            if now not in self._places:
                return
            if self._rank.rank == now % self._rank.world_size:
                self._go_on(now, number)
            elif number == self._places[now]:
                self._stop(now)

        return look

    def _go_on(self, now: int, number: int) -> None:
        if number == self._places[now]:
            self._begin = len(self._acts)
        if self._begin is None:
            return
        begun = any(act.kind == "start" for act in self._acts[self._begin :])
        if begun or min(self._rounds) > now:
            self.came.append((now, self._begin, len(self._acts)))
            self._begin = None
            job_store().set(self._name(now), "")

    def _stop(self, now: int) -> None:
        try:
            job_store().wait([self._name(now)], timedelta(seconds=PATIENCE))
        except dist.DistStoreError:  # the time is over
            self.gave_up.append(now)

    def _name(self, now: int) -> str:
        return f"labkit: turn {now} of {self._rank.group.group_name}"


@contextlib.contextmanager
def taking_turns(rank: Rank, net: nn.Module, acts: Sequence[Act], rounds: int) -> Iterator[None]:
    """Facts: came, the rounds in which this rank was the one to go on, each with how many acts there were
    where it came and where it had gone on; gave_up, those in which it waited in vain for the one that was.

    acts: of this rank, as they grow. rounds: how often each parameter gets a gradient, at least.
    """
    turns = _Turns(rank, net, acts, rounds)
    with turns.taken():
        yield
    rank.fact("came", [list(entry) for entry in turns.came])
    rank.fact("gave_up", list[object](turns.gave_up))


def goes_on(evidence: Evidence) -> Iterator[Finding]:
    """In more than half of the rounds in which a call had begun and none was waited for, which other judges
    see; nothing is found where these were too few.
    """
    looked_at = {number for answer in evidence.answers for number in _rounds_under_way(answer)}
    stood = looked_at & {number for answer in evidence.answers for number in answer.facts["gave_up"]}
    if len(looked_at) >= ENOUGH:
        told = "backward that goes on while a call is under way, also where another rank comes to it later"
        seen = f"it stands still until the others come, in {len(stood)} of {len(looked_at)} steps looked at"
        yield Finding(2 * len(stood) < len(looked_at), told, seen)


def _rounds_under_way(answer: RankAnswer) -> Iterator[int]:
    """Those in which this rank, when it was the one, began a call and waited for none, but at a barrier."""
    acts = acts_of(answer)
    barriers = {act.number for act in acts if act.op == "barrier"}
    for number, begin, end in answer.facts["came"]:
        inside = [act for act in acts[begin:end] if act.number not in barriers]
        kinds = {act.kind for act in inside}
        if "start" in kinds and "wait" not in kinds:
            yield number
