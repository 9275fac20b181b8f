"""What is whole of a small module whose weights are sharded, and how often it is gathered: where a stack of
equal layers shows that weights come and go, they do so in any other module too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.lesson_08.net import STEPS, net_of, sent, uses_both
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of, nbytes
from labkit.checks.shared.places import place_of
from labkit.torch_private import tree_iter

AGREEMENT = 64  # bytes of a call by which ranks agree on something
AT_ONCE = "whole at once"  # a fact
AT_REST = "whole at rest"  # a fact


class Whole:
    """Looks which parameters of `net` are whole, by the memory behind them, while it is used and when it
    rests: one that has its shape, and behind it more than a rank's share of its unit.

    Made before the net is sharded: nothing of a hook's own order is asked for, as at no time more may be
    whole than at another.
    """

    def __init__(self, net: nn.Module, units: Sequence[nn.Module], ranks: int):
        self._net, self._ranks = net, ranks
        self._home = homes_of(units)
        self._shapes = {name: p.shape for name, p in net.named_parameters()}
        self._shares = {name: self._share_of(p) for name, p in net.named_parameters()}
        self._numbers = {name: self._home[id(p)][0] for name, p in net.named_parameters()}
        self._trained = {name for name, p in net.named_parameters() if p.requires_grad}
        self._at_rest: dict[str, set[str]] = {}
        self._at_once = 0
        for unit in units:
            unit.register_forward_pre_hook(lambda *_: self._count())
        for p in net.parameters():
            if p.requires_grad:
                p.register_hook(lambda _: self._count())

    def watch(self, sharded: nn.Module) -> None:
        """Whatever is whole before or after a forward is so at rest."""
        sharded.register_forward_pre_hook(lambda *_: self.rest("before a forward"))
        sharded.register_forward_hook(lambda *_: self.rest("after a forward"))

    def rest(self, when: str) -> None:
        """Note what is whole, where nothing should be."""
        self._at_rest.setdefault(when, set()).update(self._whole())

    def tell(self, rank: Rank) -> None:
        """Facts: AT_REST, names by moment; AT_ONCE, the most units of which something trained was whole."""
        rank.fact(AT_REST, {when: sorted(names) for when, names in self._at_rest.items()})
        rank.fact(AT_ONCE, self._at_once)

    def _share_of(self, p: nn.Parameter) -> int:
        number, _ = self._home[id(p)]
        unit = [q for home, q in self._home.values() if home == number and q.requires_grad == p.requires_grad]
        together = sum(q.numel() for q in unit)
        return -(-together // self._ranks) * max(4, p.element_size())

    def _whole(self) -> list[str]:
        return [
            name
            for name, p in self._net.named_parameters()
            if p.shape == self._shapes[name]
            and p.untyped_storage().nbytes() >= nbytes(p)
            and p.untyped_storage().nbytes() > self._shares[name]
        ]

    def _count(self) -> None:
        whole = {self._numbers[name] for name in self._whole() if name in self._trained}
        self._at_once = max(self._at_once, len(whole))


_Homes = dict[int, tuple[int, nn.Parameter]]  # id of a parameter -> its unit's number, itself


def homes_of(units: Sequence[nn.Module]) -> _Homes:
    """One that several units have belongs to the first."""
    homes: _Homes = {}
    for number, unit in enumerate(units):
        for p in unit.parameters():
            homes.setdefault(id(p), (number, p))
    return homes


# -- judges


def nothing_whole(frozen: bool | None = None) -> Judge:
    """No parameter is whole before or after a forward, after backward or full_weights: of those of the case's
    net that are trained, or of those that are `frozen`; None: of all that any module has.
    """

    def judge(evidence: Evidence) -> Iterator[Finding]:
        names = None if frozen is None else _names(evidence.case, frozen)
        for answer in evidence.answers:
            for when, found in answer.facts[AT_REST].items():
                whole = [name for name in found if names is None or name in names]
                told = f"{when}: no parameter whole"
                yield Finding(not whole, told, f"whole: {', '.join(whole)}", answer.rank)

    return judge


def few_whole(evidence: Evidence) -> Iterator[Finding]:
    """At no time more units are whole than the one at work, and `prefetch` more, need."""
    case = evidence.case
    units = net_of(case).units()
    needs = [{homes_of(units)[id(p)][0] for p in unit.parameters()} for unit in units]
    width = 1 + case.params["prefetch"]
    most = max(len(set[int]().union(*needs[n : n + width])) for n in range(len(needs)))
    for answer in evidence.answers:
        seen = answer.facts[AT_ONCE]
        yield Finding(seen <= most, f"at most {most} units whole at a time", str(seen), answer.rank)


def _names(case: Case, frozen: bool) -> set[str]:
    return {name for name, p in net_of(case).named_parameters() if p.requires_grad != frozen}


def comes_and_goes(frozen: bool = False) -> Judge:
    """In each step every unit that was called was gathered in each forward and in each backward, but perhaps
    the last one, and scattered after each; and nothing large was sent in any other way. frozen: where what
    is frozen counts, which nobody scatters.
    """

    def judge(evidence: Evidence) -> Iterator[Finding]:
        used = [
            [Used(evidence.case, rank, step, frozen) for step in range(STEPS)]
            for rank in range(evidence.case.ranks)
        ]
        for answer in evidence.answers:
            members = place_of(evidence.case, answer.rank).members
            if len(members) > 1:
                for step in range(STEPS):
                    yield from _passes(evidence.case, answer, step, [used[rank][step] for rank in members])

    return judge


class Used:
    """Which units a rank's forward calls in a step, and which of them its backward needs again: those whose
    input has a gradient.

    gathered: unit -> bytes of a rank's shards, of all that is gathered for it.
    """

    def __init__(self, case: Case, rank: int, step: int, frozen: bool):
        net, size = net_of(case), place_of(case, rank).size
        units = net.units()
        self.called, self.again = set[int](), set[int]()
        self.sizes = dict.fromkeys(range(len(units)), 0)
        self.scattered = dict(self.sizes)
        homes = homes_of(units)
        for number in self.sizes:
            own = [p for home, p in homes.values() if home == number]
            for trained in (True, False) if frozen else (True,):
                share = -(-sum(p.numel() for p in own if p.requires_grad == trained) // size)
                self.sizes[number] += share * net.first.weight.element_size()
                self.scattered[number] += trained * share * size * net.first.weight.element_size()
        for unit in units:
            needs = {homes[id(p)][0] for p in unit.parameters()}
            unit.register_forward_pre_hook(
                lambda _, args, kwargs, needs=needs: self._note(needs, (args, kwargs)), with_kwargs=True
            )
        x = torch.zeros(1, case.params["width"], dtype=net.first.weight.dtype)
        net(x.requires_grad_(case.params.get("input_grad", True)), uses_both(case, rank, step))

    def _note(self, needs: set[int], given: object) -> None:
        self.called |= needs
        if any(isinstance(t, Tensor) and t.requires_grad for t in tree_iter(given)):
            self.again |= needs


def _passes(case: Case, answer: RankAnswer, step: int, used: Sequence[Used]) -> Iterator[Finding]:
    phase, sizes = f"step {step}", used[0].sizes
    forwards, backwards = _how_often(case)
    called = set[int]().union(*(one.called for one in used))
    again = [sizes[number] for number in set[int]().union(*(one.again for one in used))]
    least = forwards * sum(sizes[number] for number in called)
    least += backwards * (sum(again) - max(again, default=0))
    gathered = sum(sent(answer, phase, "all_gather"))
    told = f"step {step + 1}: at least {least:,} bytes gathered, each unit for forward and again for backward"
    yield Finding(gathered >= least, told, f"{gathered:,}", answer.rank)
    least = backwards * sum(used[0].scattered[number] for number in called)
    scattered = sum(sent(answer, phase, "reduce_scatter"))
    told = f"step {step + 1}: at least {least:,} bytes of gradients scattered"
    yield Finding(scattered >= least, told, f"{scattered:,}", answer.rank)
    yield nothing_else(answer, phase)


def _how_often(case: Case) -> tuple[int, int]:
    """Forwards and backwards in a step."""
    micro_batches: int = case.params["micro_batches"]
    forwards = micro_batches + (4 if case.kind == "evaluated" else 0)
    return forwards, 1 if case.kind == "together" else micro_batches


def scatters_once_a_backward(evidence: Evidence) -> Iterator[Finding]:
    """In each step no more is scattered than the gradients of all units once a backward, if each parameter is
    padded.
    """
    case = evidence.case
    _, backwards = _how_often(case)
    modules = 2 if case.params.get("another") else 1
    for answer in evidence.answers:
        size = place_of(case, answer.rank).size
        padded = [
            -(-p.numel() // size) * size * p.element_size()
            for p in net_of(case).parameters()
            if p.requires_grad
        ]
        most = backwards * modules * sum(padded)
        for step in range(STEPS):
            seen = sum(sent(answer, f"step {step}", "reduce_scatter"))
            told = f"step {step + 1}: at most {most:,} bytes by reduce_scatter, each unit once a backward"
            yield Finding(seen <= most, told, f"{seen:,}", answer.rank)


def nothing_else(answer: RankAnswer, phase: str) -> Finding:
    """No large call but those that gather weights and scatter gradients."""
    others = {
        op
        for op, num_bytes in calls_of(answer, phase)
        if op not in ("all_gather", "reduce_scatter") and num_bytes > AGREEMENT
    }
    return Finding(not others, "no other collective of what is large", ", ".join(sorted(others)), answer.rank)


def comes_and_goes_in_bf16(evidence: Evidence) -> Iterator[Finding]:
    """Each micro-batch gathers all weights at least once and scatters their gradients."""
    case, micro_batches = evidence.case, evidence.case.params["micro_batches"]
    shards = [-(-part.numel() // case.ranks) for part in evidence.inputs["w"][0].chunk(2)]
    for answer in evidence.answers:
        gathered, scattered = (len(sent(answer, "step 0", op)) for op in ("all_gather", "reduce_scatter"))
        least = micro_batches * len(shards)
        told = f"at least {least} all_gathers and as many reduce_scatters in {micro_batches} micro-batches"
        right = min(gathered, scattered) >= least or case.ranks == 1
        yield Finding(right, told, f"{gathered} and {scattered}", answer.rank)
