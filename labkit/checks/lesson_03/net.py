"""The model, data and reference of lesson 03's checks: replicas of a small net, each with rows of its own.

A case's inputs hold every rank's state ("state.RANK.NAME"), and rows and targets by step, rank and
micro-batch. A rank is handed the state it starts from ("state.NAME") and its own rows, by step and
micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge, Property
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import STEPS, State, descend, same
from labkit.checks.shared.places import groups_of, place_of

MICRO_BATCHES = 3
TOO_LARGE = 2**60 + 1  # to be exact in float64, or within some hundreds of it
SPARE = 200  # addresses that parameters may have
PAIRS = [[0, 3], [1, 2]]
TORCHS_OWN = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
    "torch.nn.DataParallel",
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed._composable.replicate.replicate",
)


def subgroup(judge: Judge) -> Property:
    """The property that a group smaller than the job works, judged on cases of that kind."""
    return Property(
        "subgroup",
        "robustness",
        1,
        "It works in a group that is not all ranks",
        "group= is missing in a call, or src=0 where the group's first rank is meant (group_src=0)",
        {"subgroup": judge},
    )


def any_layout(judge: Judge) -> Property:
    """The property that the order in memory does not matter, judged on cases of that kind."""
    return Property(
        "any-layout",
        "robustness",
        1,
        "It works where a tensor lies in memory in another order on one rank",
        "a collective adds or copies memory in the order in which it lies there: send what is contiguous",
        {"layout": judge},
    )


def net_case(name: str, kind: str, ranks: int, seed: int, **params: Any) -> Case:
    """Replicas of the small net, one a rank. groups: those they work in, where it is not one of all ranks.
    views_on: ranks where no matrix and no vector is contiguous. mixed: the layer beside is float32. zeroed:
    between steps gradients are filled with zeros, not given up. without: for each rank, the layers that it
    does not use. swapped: parameters that are frozen from the second step on, or trained if they were
    frozen. earlier: gradients of ones are there before the first step. silent: one more backward comes at
    the end, inside no_sync. ahead: two micro-batches go forward before the first goes back. evaluated: in
    evaluation mode. more: so many steps of another net come at the end, to see what they leave behind.
    turned: the first gradients to be there are not those of the last parameters.
    """
    sizes = {"rows": 5, "width": 3, "inner": 7, "bucket_bytes": 400, **params}
    return Case(name, ranks, sizes, seed, kind=kind, own_parts=kind == "own-parts")


EVERY_LAYER = ["first", "second", "last", "aside"]


class Pointwise(nn.Module):
    """A linear layer without bias whose weight has four dimensions, [out, in, 1, 1], as a convolution's: a
    module that has a child and owns a parameter.
    """

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.out_features = out_features
        self.weight = nn.Parameter(torch.zeros(out_features, in_features, 1, 1))
        self.after = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(F.linear(x, self.weight[..., 0, 0]))
        return out


class Net(nn.Module):
    """Three linear layers, one beside them, and buffers of two kinds, of which one is in no state_dict. Any
    layer may be left out. Half of the output in evaluation mode.
    """

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.first = nn.Linear(width, inner)
        self.second = Pointwise(inner, inner + 1)
        self.last = nn.Linear(inner + 1, width)
        self.aside = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, without: Collection[str] = ()) -> Tensor:
        inner = torch.tanh(_through(self.first, x, "first" in without))
        inner = torch.tanh(_through(self.second, inner, "second" in without))
        out = _through(self.last, inner, "last" in without) * self.get_buffer("scale")
        out = out if "aside" in without else out + self.aside(x.to(self.aside.weight.dtype))
        return out if self.training else out / 2


def _through(layer: nn.Linear | Pointwise, x: Tensor, left_out: bool) -> Tensor:
    """What a layer gives; in place of one that is left out, the mean of what enters, in the layer's width."""
    if left_out:
        return x.mean(-1, keepdim=True).expand(-1, layer.out_features)
    out: Tensor = layer(x)
    return out


def _empty_net(case: Case) -> Net:
    return Net(case.params["width"], case.params["inner"]).double()


def net_of(case: Case, handed: Inputs) -> Net:
    """The net in float64, with the state that a rank was handed. The case's `frozen` names parameters that
    are not trained; where it is `tied`, two layers have one bias; where it is `mixed`, one is float32
    (for two ranks: a float32 mean of two is the same in any order, and float64 numbers hang on it); where it
    is `turned`, the parameters of the last layer come last, whose gradients are not the first to be there.
    """
    net = _empty_net(case)
    if case.params.get("mixed"):
        net.aside.float()
    if case.params.get("turned"):
        last = net.last
        del net.last
        net.last = last
    for name, tensor in state_of(net).items():
        tensor.data.copy_(handed[f"state.{name}"])
    for name in case.params.get("frozen", ()):
        net.get_parameter(name).requires_grad_(False)
    net.train(not case.params.get("evaluated"))
    return tied(net) if case.params.get("tied") else net


def tied(net: Net) -> Net:
    """The net with one parameter under two names."""
    net.aside.bias = net.last.bias
    return net


def state_of(net: nn.Module) -> State:
    """Every parameter and every buffer, under each of its names, whether a state_dict has it or not."""
    named = (*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in named}


def lie_differently(rank: Rank, net: nn.Module) -> None:
    """On the ranks of the case's `views_on`: matrices lie transposed in memory, a convolution's filters in
    `channels_last` (of one pixel, from the last dimension to the first), vectors with gaps, and all of a
    dtype behind one another in one piece. Shapes and numbers are as before.
    """
    if rank.rank in rank.params.get("views_on", ()):
        tensors = [*net.parameters(), *net.buffers()]
        for dtype in {tensor.dtype for tensor in tensors}:
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            parts = alike[0].data.new_empty(2 * sum(t.numel() for t in alike))
            for tensor, part in zip(alike, parts.split([2 * t.numel() for t in alike]), strict=True):
                tensor.data = _view_in(part, tensor.shape).copy_(tensor.data)


def _view_in(memory: Tensor, shape: torch.Size) -> Tensor:
    """A view that is not contiguous, in memory of twice its size."""
    if len(shape) < 2:
        return memory.view(*shape, 2)[..., 0]
    if len(shape) == 4 and math.prod(shape[2:]) > 1:
        n, channels, height, width = shape
        return memory.view(2, n, height, width, channels)[0].permute(0, 3, 1, 2)
    return memory.view(2, *reversed(shape))[0].permute(*reversed(range(len(shape))))


def stand_anywhere(rank: Rank, net: nn.Module) -> None:
    """Hold each parameter in an object at an address that is drawn for this rank. A set of parameters is gone
    through by address: ranks that are forked from one process would do it alike, as other ranks do not.
    """
    spare = [nn.Parameter(torch.empty(0)) for _ in range(SPARE)]
    parameters = list(net.parameters())
    drawn = Random(f"{rank.case.name}/{rank.rank}").sample(spare, len(parameters))
    becomes = dict(zip(parameters, drawn, strict=True))
    for before, after in becomes.items():
        after.data = before.data
        after.requires_grad_(before.requires_grad)
    for name, before in list(net.named_parameters(remove_duplicate=False)):
        place, _, own = name.rpartition(".")
        setattr(net.get_submodule(place), own, becomes[before])


def trained(net: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen."""
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def swap_frozen(case: Case, net: nn.Module) -> None:
    """Freeze what the case's `swapped` names, or thaw it where it is frozen."""
    for name in case.params.get("swapped", ()):
        parameter = net.get_parameter(name)
        parameter.requires_grad_(not parameter.requires_grad)


def add_earlier_gradients(case: Case, net: nn.Module) -> None:
    """Where the case says `earlier`: gradients of ones, which the first backward adds to."""
    for parameter in trained(net) if case.params.get("earlier") else ():
        parameter.grad = torch.ones_like(parameter)


# -- inputs


def net_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Everything is drawn, and differs on every rank. Of kind "values" a float rounds whole numbers."""
    found: Inputs = {}
    for rank in range(case.ranks):
        for name, tensor in state_of(_empty_net(case)).items():
            drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            whole = (drawn * 100).long() + (TOO_LARGE if case.kind == "values" else 0)
            found[f"state.{rank}.{name}"] = drawn if tensor.is_floating_point() else whole
    shape = (STEPS, case.ranks, MICRO_BATCHES, case.params["rows"], case.params["width"])
    return found | {n: torch.randn(shape, generator=generator, dtype=torch.float64) for n in ("x", "target")}


def hand_state(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """A rank's own state."""
    prefix = f"state.{rank}."
    return {f"state.{n.removeprefix(prefix)}": t for n, t in inputs.items() if n.startswith(prefix)}


def hand_rows(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """A rank's own rows and targets, [steps, micro-batches, rows, width]."""
    return {name: inputs[name][:, rank] for name in ("x", "target")}


def hand_own(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """A rank's own state and rows: the ranks start from different weights."""
    return hand_state(case, inputs, rank) | hand_rows(case, inputs, rank)


def hand_replica(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """A rank's own rows, and the state that all ranks of its group start from: the first's."""
    first = place_of(case, rank).members[0]
    return hand_state(case, inputs, first) | hand_rows(case, inputs, rank)


# -- on a rank


def loss_of(model: nn.Module, case: Case, handed: Inputs, rank: int, step: int, m: int = 0) -> Tensor:
    """The mean squared error of one micro-batch of a rank. What it leaves out is said by keyword, which a
    wrapper must pass on. The input asks for a gradient, so that there is a backward where all is frozen.
    """
    x = handed["x"][step, m].detach().requires_grad_()
    out = model(x, without=_left_out(case, rank, m))
    return F.mse_loss(out, handed["target"][step, m])


def _left_out(case: Case, rank: int, m: int) -> set[str]:
    """The layers that a micro-batch of a rank does not use. The case's `without` lists them for each rank,
    its `aside` the ranks that use the layer beside, and its `aside_in` how many of the micro-batches do.
    """
    ranks, first = case.params.get("aside", range(case.ranks)), case.params.get("aside_in", MICRO_BATCHES)
    found = set(case.params["without"][rank]) if "without" in case.params else set()
    return found if rank in ranks and m < first else found | {"aside"}


def own_loss(rank: Rank, model: nn.Module, step: int, m: int = 0) -> Tensor:
    """`loss_of` the rank that this runs on."""
    return loss_of(model, rank.case, rank.inputs, rank.rank, step, m)


def send_gradients_and_step(rank: Rank, net: nn.Module, step: int) -> None:
    """`send_gradients`, then a step of SGD; the gradients are gone, or zeros where the case is `zeroed`, and
    other parameters are frozen where it is `swapped`.
    """
    send_gradients(rank, net, step)
    descend(net)
    net.zero_grad(set_to_none=not rank.params.get("zeroed"))
    swap_frozen(rank.case, net)


def send_gradients(rank: Rank, net: nn.Module, step: int) -> None:
    """Answers: "grad STEP.NAME", zeros where a trained parameter has none. Fact: "frozen STEP", the frozen
    parameters that have one.
    """
    frozen = [name for name, p in net.named_parameters() if not p.requires_grad and p.grad is not None]
    rank.fact(f"frozen {step}", frozen)
    for name, gradient in _gradients(net).items():
        rank.answer(f"grad {step}.{name}", gradient)


def send_state(rank: Rank, net: nn.Module, prefix: str) -> None:
    """Answers: every parameter and buffer as "PREFIX.NAME"."""
    for name, tensor in state_of(net).items():
        rank.answer(f"{prefix}.{name}", tensor)


def _gradients(net: nn.Module) -> State:
    parameters = ((name, p) for name, p in net.named_parameters() if p.requires_grad or p.grad is not None)
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters}


# -- in the judge

Loss = Callable[[nn.Module, Case, Inputs, int, int], Tensor]
"""A model, a case, what a rank is handed, the rank, the step -> its loss, in one process."""
WORDS = {
    "start": "{} at the start, as the group's first rank has it",
    "grad 0": "gradient of {} in step 1, averaged over the group",
    "grad 1": "gradient of {} in step 2, averaged over the group",
    "trained": "{} after two steps, as one process with the group's rows has it",
}


@dataclass(frozen=True)
class ReplicaEvidence(Evidence):
    """One case's answers, to be held against one process that has the rows of all ranks of a group. learns:
    each step ends with one of SGD.
    """

    loss: Loss
    learns: bool = True

    def reference(self, answer: RankAnswer) -> State:
        """ "start.NAME", "grad STEP.NAME", "loss STEP.RANK", "trained.NAME", of the rank's group."""
        return self._references[place_of(self.case, answer.rank).index]

    def first_net(self, answer: RankAnswer) -> Net:
        """The net that the ranks of a rank's group should start from."""
        return net_of(self.case, hand_replica(self.case, self.inputs, answer.rank))

    @cached_property
    def _references(self) -> list[State]:
        return [self._reference(members) for members in groups_of(self.case)]

    def _reference(self, members: list[int]) -> State:
        handed = {rank: hand_replica(self.case, self.inputs, rank) for rank in members}
        net = net_of(self.case, handed[members[0]])
        add_earlier_gradients(self.case, net)
        found = _named("start", state_of(net))
        for step in range(STEPS):
            losses = {r: self.loss(net, self.case, handed[r], r, step) for r in members}
            torch.stack(list(losses.values())).mean().backward()
            found |= _named(f"grad {step}", _gradients(net))
            found |= _named(f"loss {step}", {str(r): loss for r, loss in losses.items()})
            if self.learns:
                descend(net)
            net.zero_grad()
            swap_frozen(self.case, net)
        return found | _named("trained", state_of(net))


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> State:
    return {f"{prefix}.{name}": tensor.detach().clone() for name, tensor in tensors.items()}


def equals(*kinds: str) -> Judge:
    """Every rank's tensors of these kinds ("start", "grad 0", "trained", ...) are the reference's."""

    def judge(evidence: ReplicaEvidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            for key, tensor in evidence.reference(answer).items():
                kind, _, name = key.partition(".")
                if kind in kinds:
                    yield same(WORDS[kind].format(name), tensor, answer, key)

    return judge


GRADIENTS = equals("grad 0", "grad 1")


def leaves_frozen_alone(evidence: ReplicaEvidence) -> Iterator[Finding]:
    """No frozen parameter was given a gradient."""
    for answer in evidence.answers:
        given = sorted({name for step in range(STEPS) for name in answer.facts[f"frozen {step}"]})
        yield Finding(not given, "no gradient for a frozen parameter", f"given to {given}", answer.rank)
