"""The model, data and reference of lesson 08's checks: replicas of a small net, each with rows of its own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_08.layers import Detour, Kept, Side, Through, Two, nested, taken_out
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import same
from labkit.checks.shared.places import place_of
from labkit.checks.shared.split import drawn, dtype_of, loaded, under
from labkit.checks.shared.twins import each_once

LEARNING_RATE = 0.3
STEPS = 3
SLOWER = "slower"  # an option of a group of parameters that the schedule reads
PAIRS = [[0, 3], [1, 2]]  # groups whose ranks are not those of the job
FORBIDDEN = (
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed.optim.ZeroRedundancyOptimizer",
    "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.checkpoint.save",
    "torch.distributed.checkpoint.load",
)


class Net(nn.Module):
    """Linear layers of which no two have the same size, and what the case asks for beside them.

    parts: of "twice" (a layer called twice), "frozen", "early" and "late" (the first layer is frozen, the
    last), "head" (all but the last are), "half" (frozen but for its bias), "unused", "tied" (two layers share
    a weight), "borrowed" (a layer that has only a weight of another), "side" (a weight only some ranks use),
    "detour" (a layer that all call and of which only some use the weights), "skipped" (a layer that is called
    in some steps), "ahead" (one before all others, which some ranks call), "two" (several inputs and
    outputs), "bare" (one without weights), "same" (one that returns what it is given), "kept" (one that
    returns what it is given by keyword), "passed" (by position), "through" (one that returns it beside what
    nobody uses), "own" (a weight that is in no layer).

    nesting: of what goes into and comes out of some of these, see `nested`.
    """

    def __init__(self, width: int, inner: int, parts: Sequence[str], nesting: str = ""):
        super().__init__()
        self.nesting = nesting
        self.ahead = nn.Linear(width, width) if "ahead" in parts else None
        self.first = nn.Linear(width, inner)
        self.second = nn.Linear(inner, inner, bias=False)
        self.kept = Kept(nesting) if "kept" in parts else None
        self.passed = Kept(nesting) if "passed" in parts else None
        self.through = Through(nesting) if "through" in parts else None
        self.again = nn.Linear(inner, inner) if "twice" in parts else None
        self.frozen = nn.Linear(inner, inner) if "frozen" in parts else None
        self.side = Side(inner) if "side" in parts else None
        self.detour = Detour(inner) if "detour" in parts else None
        self.skipped = nn.Linear(inner, inner) if "skipped" in parts else None
        self.two = Two(inner, nesting) if "two" in parts else None
        self.bare = nn.Tanh() if "bare" in parts else None
        self.partly = nn.Linear(inner, inner) if "half" in parts else None
        self.tied = nn.Linear(inner, inner) if "tied" in parts else None
        self.borrowed = nn.Linear(inner, inner, bias=False) if "borrowed" in parts else None
        self.third = nn.Linear(inner, inner + 1)
        self.same = nn.Identity() if "same" in parts else None
        self.last = nn.Linear(inner + 1, width)
        self.unused = nn.Linear(2, 3) if "unused" in parts else None
        if "own" in parts:
            self.scale = nn.Parameter(torch.ones(width))
        if self.frozen is not None:
            self.frozen.requires_grad_(False)
        if "head" in parts:
            self.requires_grad_(False)
            self.last.requires_grad_(True)
        if "early" in parts:
            self.first.requires_grad_(False)
        if "late" in parts:
            self.last.requires_grad_(False)
        if self.partly is not None:
            self.partly.weight.requires_grad_(False)
        if self.tied is not None:
            self.tied.weight = self.second.weight
        if self.borrowed is not None:
            self.borrowed.weight = self.second.weight

    def units(self) -> list[nn.Module]:
        """Its layers, in the order forward uses them."""
        return list(self.children())

    def forward(self, x: Tensor, both: bool = True) -> Tensor:
        if self.ahead is not None and both:
            x = torch.tanh(self.ahead(x))
        x = self.second(torch.tanh(self.first(x)))
        if self.kept is not None:
            x = self.kept(held=nested(self.nesting, x))
        if self.passed is not None:
            x = self.passed(nested(self.nesting, x))
        if self.through is not None:
            x = taken_out(self.nesting, self.through(nested(self.nesting, x))["given"])
        x = torch.tanh(x)
        if self.again is not None:
            x = torch.tanh(self.again(x))
        if self.frozen is not None:
            x = torch.tanh(self.frozen(x))
        if self.again is not None:
            x = torch.tanh(self.again(x))
        if self.side is not None:
            x = torch.tanh(self.side(x, both))
        if self.detour is not None:
            x = torch.tanh(self.detour(x, both))
        if self.skipped is not None and both:
            x = torch.tanh(self.skipped(x))
        if self.two is not None:
            found = taken_out(self.nesting, self.two(x, y=x * x))
            x = torch.tanh(found["sum"][0]) * found["left"][0]
        if self.bare is not None:
            x = self.bare(x)
        if self.partly is not None:
            x = torch.tanh(self.partly(x))
        if self.tied is not None:
            x = torch.tanh(self.tied(x))
        if self.borrowed is not None:
            x = torch.tanh(self.borrowed(x))
        x = self.third(x)
        if self.same is not None:
            x = self.same(x)
        return self.last(torch.tanh(x))


class Timed(nn.Module):
    """A linear layer that notes when its forward runs."""

    def __init__(self, width: int, log: list[float], bias: bool = False):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=bias)
        self.note = lambda: log.append(time.monotonic())  # the list itself is out of the student's reach

    def forward(self, x: Tensor) -> Tensor:
        self.note()
        return torch.tanh(self.linear(x))


class Called(nn.Sequential):
    """Layers, called in the order of `calls`: each once, or one of them twice or not at all."""

    calls: Sequence[int]

    def __init__(self, layers: Sequence[nn.Module], calls: Sequence[int]):
        super().__init__(*layers)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        for number in self.calls:
            x = self[number](x)
        return x


def stack(case: Case, log: list[float]) -> Called:
    """Equal layers whose weights are far larger than what passes through them, which is as large behind the
    last as before the first. frozen: the numbers of those that are. bias: whether they have one.
    """
    torch.manual_seed(case.seed)
    width, bias = case.params["width"], case.params.get("bias", False)
    layers = [Timed(width, log, bias) for _ in range(case.params["layers"])]
    for layer in layers:
        layer.linear.weight.data.mul_(3**0.5)  # torch draws them with a third of this variance
    for number in case.params.get("frozen", ()):
        layers[number].requires_grad_(False)
    return Called(layers, calls_of(case)).to(dtype_of(case))


def calls_of(case: Case) -> Sequence[int]:
    """The numbers of the layers of a stack, in the order of their calls: `called`, or each once."""
    calls: Sequence[int] = case.params.get("called", range(case.params["layers"]))
    return calls


def net_of(case: Case) -> Net:
    """The case's net, not yet with the case's weights."""
    sizes, parts = (case.params["width"], case.params["inner"]), case.params.get("parts", ())
    return Net(*sizes, parts, case.params.get("nesting", "")).to(dtype_of(case))


def net_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """The state all replicas start from ("full.NAME"); x and target: [ranks, steps, micro, rows, width]."""
    found: Inputs = {
        f"full.{name}": drawn(case, generator, *tensor.shape) / tensor.shape[-1] ** 0.5
        for name, tensor in net_of(case).named_parameters()
    }
    shape = (case.ranks, STEPS, case.params["micro_batches"], case.params["rows"], case.params["width"])
    return found | {name: drawn(case, generator, *shape) for name in ("x", "target")}


def hand_own_rows(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """The state, and this rank's rows alone."""
    return {name: tensor[rank] if name in ("x", "target") else tensor for name, tensor in inputs.items()}


def handed_net(rank: Rank) -> Net:
    """The net as this rank is handed it."""
    net = net_of(rank.case).to(rank.device)
    loaded(net, under("full.", rank.inputs))
    return net


def uses_both(case: Case, rank: int, step: int) -> bool:
    """Whether a rank uses in a step the weight or the layer that only some use: `both` lists them, for one
    step after the other and then from the start again.
    """
    by_step = case.params.get("both", [range(case.ranks)])
    return rank in by_step[step % len(by_step)]


def has_rows(case: Case, rank: int, step: int) -> bool:
    """Whether a rank has rows in a step: `without_rows` lists those that have none, for one step after the
    other and then from the start again.
    """
    by_step = case.params.get("without_rows", [[]])
    return rank not in by_step[step % len(by_step)]


def loss_of(out: Tensor, target: Tensor) -> Tensor:
    """Of one micro-batch: scaled, so that a few steps change weights well above any tolerance."""
    return F.mse_loss(out, target)


def loss_with(out: Tensor, target: Tensor, beside: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Of one micro-batch, and of what other modules make of x in the same backward, which adds nothing to its
    gradients.
    """
    return loss_of(out, target) + sum((other(x.detach()).sum() for other in beside), torch.zeros(()))


@dataclass(frozen=True)
class TrainedEvidence(Evidence):
    """What a net trained in one process gives, for each group of ranks."""

    @cached_property
    def _states(self) -> dict[tuple[int, ...], list[dict[str, Tensor]]]:
        return {}

    def trained(self, members: Sequence[int]) -> list[dict[str, Tensor]]:
        """The weights at the start and after each step, for the mean of the losses of these ranks."""
        key = tuple(members)
        if key not in self._states:
            self._states[key] = [dict(state) for state in self._train(key)]
        return self._states[key]

    def _train(self, members: Sequence[int]) -> Iterator[dict[str, Tensor]]:
        net = net_of(self.case)
        loaded(net, under("full.", self.inputs))
        optimizer = optimizer_of(self.case, net)
        yield snapshot(net)
        for step in range(STEPS):
            optimizer.zero_grad()
            self.mean_loss(net, step, members).backward()
            for parameter in net.parameters():
                if parameter.grad is None and parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            set_rates(self.case, optimizer, step)
            optimizer.step()
            yield snapshot(net)

    def mean_loss(self, net: Net, step: int, members: Sequence[int]) -> Tensor:
        """Micro-batches add up, ranks are averaged."""
        micro_batches = range(self.case.params["micro_batches"])
        ranks = [rank for rank in members if has_rows(self.case, rank, step)]
        losses = [self.loss(net, step, m, rank) for rank in ranks for m in micro_batches]
        return torch.stack(losses).sum() / len(members)

    def loss(self, net: Net, step: int, micro_batch: int, rank: int) -> Tensor:
        """Of one micro-batch of one rank."""
        x, target = (self.inputs[name][rank, step, micro_batch] for name in ("x", "target"))
        return loss_of(net(x, uses_both(self.case, rank, step)), target)


def snapshot(net: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters, each under its first name."""
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def weights_follow(evidence: TrainedEvidence) -> Iterator[Finding]:
    """After each step every rank has the weights that one process has with all ranks' rows."""
    for answer in evidence.answers:
        states = evidence.trained(place_of(evidence.case, answer.rank).members)
        for step in range(STEPS):
            for name, expected in states[step + 1].items():
                told = f"{name} after step {step + 1}, as one process has it with all ranks' rows"
                yield same(told, expected, answer, f"weights {step}.{name}")


def same_bits(evidence: Evidence) -> Iterator[Finding]:
    """Replicas of a group hold the same bits."""
    by_rank = {answer.rank: answer for answer in evidence.answers}
    for answer in evidence.answers:
        first = by_rank[place_of(evidence.case, answer.rank).members[0]]
        for name, tensor in answer.tensors.items():
            if name.startswith("weights "):
                other = first.tensors.get(name)
                equal = other is not None and torch.equal(tensor, other)
                told = f"{name}: the same bits as on rank {first.rank}"
                yield Finding(equal, told, "other bits", answer.rank)


def option_groups(net: nn.Module) -> list[dict[str, Any]]:
    """Vectors do not decay and learn faster; of the matrices every other one decays, some before the vectors
    and some behind them: cuts fall into each of the three, and the groups' parameters are not next to each
    other.
    """
    matrices = [p for p in net.parameters() if p.dim() > 1]
    vectors = [p for p in net.parameters() if p.dim() == 1]
    return [
        {"params": matrices[::2], "weight_decay": 0.3, SLOWER: 2},
        {"params": vectors, "weight_decay": 0.0, "lr": 2 * LEARNING_RATE},
        {"params": matrices[1::2], "lr": LEARNING_RATE / 2, SLOWER: 0.5},
    ]


class RateNeeded(torch.optim.SGD):
    """An optimizer that has no default for its learning rate, as many had before torch 2."""

    def __init__(self, params: Iterable[Any], *, lr: float):
        super().__init__(params, lr=lr)


OPTIONS: Mapping[str, tuple[type[torch.optim.Optimizer], Mapping[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": LEARNING_RATE}),
    "rate needed": (RateNeeded, {"lr": LEARNING_RATE}),
    "momentum": (
        torch.optim.SGD,
        {"lr": LEARNING_RATE, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05},
    ),
    "adamw": (torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
}
"""What a case calls an optimizer: the class, and its options."""


def chosen_optimizer(case: Case) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The class and options that a case trains with."""
    optimizer_class, options = OPTIONS[case.params.get("optimizer", "sgd")]
    return optimizer_class, dict(options)


def parameters_of(case: Case, net: nn.Module) -> list[Any]:
    """What the optimizer is given: all parameters, or groups of them."""
    return option_groups(net) if case.params.get("option_groups") else list(net.parameters())


def optimizer_of(case: Case, net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer one process would use."""
    optimizer_class, options = chosen_optimizer(case)
    return optimizer_class(parameters_of(case, net), **options)


def set_rates(case: Case, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A schedule, where the case has one: the learning rate falls, the faster the later the group, and as a
    group's own option says, which is none of torch's. As torch's schedulers do, it leaves the rate that it
    began with in the group.
    """
    if case.params.get("schedule"):
        for number, group in enumerate(optimizer.param_groups, 1):
            group.setdefault("initial_lr", group["lr"])
            group["lr"] = group["lr"] / 2 ** (step * number * group.get(SLOWER, 1))


def answer_weights(rank: Rank, weights: Mapping[str, Tensor], step: int) -> None:
    """Answers "weights STEP.NAME"."""
    for name, tensor in weights.items():
        rank.answer(f"weights {step}.{name}", tensor)


@torch.no_grad()
def step_plainly(shards: Sequence[nn.Parameter]) -> None:
    """A step of plain SGD over shards, which forget their gradients. As with torch's own, a shard that is
    listed twice is stepped twice.
    """
    for shard in shards:
        if shard.grad is not None:
            shard.sub_(LEARNING_RATE * shard.grad)
    for shard in shards:
        shard.grad = None


def shard_case(name: str, kind: str, ranks: int, seed: int, **params: Any) -> Case:
    """A case of replicas of the small net."""
    sizes = {"width": 3, "inner": 5, "rows": 4, "micro_batches": 1, **params}
    return Case(name, ranks, sizes, seed, kind=kind, own_parts=kind == "own-parts", timeout=40.0)


def sent(answer: RankAnswer, phase: str, op: str) -> list[int]:
    """Bytes of this rank's tensor in each call of one operation in a phase, in order."""
    calls = each_once(answer.collectives.get(phase, []))
    return [c["num_bytes"] for c in calls if c["op"] == op]
