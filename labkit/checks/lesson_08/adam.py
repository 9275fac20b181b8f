"""What some steps of an optimizer leave in memory, and what they make of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.compare import difference
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_08.held import Life, Look, bytes_beforehand, bytes_held, hold_in_process
from labkit.checks.lesson_08.net import answer_weights, snapshot
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes
from labkit.checks.shared.split import dtype_of, loaded

ADAMS_RATE = 0.05  # two steps of it are more than bf16 rounds away
OPTIMIZERS: Mapping[str, tuple[str, int, Mapping[str, float]]] = {
    "adam": ("Adam", 2, {"lr": ADAMS_RATE}),
    "adamw": ("AdamW", 2, {"lr": ADAMS_RATE, "weight_decay": 0.1}),
    "adagrad": ("Adagrad", 1, {"lr": ADAMS_RATE}),
    "momentum": ("SGD", 1, {"lr": 0.002, "momentum": 0.9}),
    "sgd": ("SGD", 0, {"lr": 0.002}),
}
"""What a case calls an optimizer: the class in torch.optim, how many numbers of state it has for each weight,
and its options.
"""


def hold_steps(rank: Rank) -> None:
    """What some steps leave in memory. Fact: held_bytes. Answers: "weights 0.NAME"."""
    before = bytes_beforehand()
    stepped = _steps(rank)(lambda when: None)
    rank.fact("held_bytes", bytes_held(before + most_of_steps(rank.case)) - before)
    answer_weights(rank, snapshot(stepped[0]), 0)


def hold_in_this_process(rank: Rank) -> None:
    """Fact: process_bytes. Answers: "weights 0.NAME"."""
    hold_in_process(
        rank,
        partial(_steps, rank),
        most_in_process(rank.case),
        lambda made: answer_weights(rank, snapshot(made[0]), 0),
    )


def _steps(rank: Rank) -> Life[tuple[nn.Module, object]]:
    """The net without gradients, and the optimizer."""
    net = _large(rank.case).to(rank.device)

    def life(look: Look) -> tuple[nn.Module, object]:
        optimizer_class, options = _chosen(rank.case)
        given = _in_groups(rank.case, net.parameters())
        optimizer = rank.student.ShardedOptimizer(given, optimizer_class, rank.group, **options)
        for _ in range(rank.params["steps"]):
            net(rank.inputs["x"]).sum().backward()
            optimizer.step()
            look("after a step")
            optimizer.zero_grad()
            net.zero_grad()  # gradients that were only set to zero are no optimizer's state
            look("without gradients")
        return net, optimizer

    return life


def _chosen(case: Case) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    name, _, options = OPTIMIZERS[case.params["optimizer"]]
    return getattr(torch.optim, name), dict(options)


def _in_groups(case: Case, tensors: Iterable[Tensor]) -> list[Any]:
    """These, or where the case has groups the matrices among them, and the vectors at half the rate."""
    given = list(tensors)
    if not case.params["in_groups"]:
        return given
    vectors = {"params": [t for t in given if t.dim() == 1], "lr": _chosen(case)[1]["lr"] / 2}
    return [{"params": [t for t in given if t.dim() > 1]}, vectors]


def positive_rows(case: Case, generator: torch.Generator) -> Inputs:
    """x, [ranks, 1, width], from 1 to 2: gradients of ranks that cancel out are rounded differently in one
    process, and Adam's first step is their sign.
    """
    x = 1 + torch.rand(case.ranks, 1, case.params["width"], generator=generator)
    return {"x": x.to(dtype_of(case))}


class _Large(nn.Module):
    """Two layers that are trained, and perhaps one between them that is not, and one that is not called."""

    def __init__(self, width: int, frozen: bool, unused: bool):
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(3)]
        layers[1].requires_grad_(False)
        self.layers = nn.Sequential(*(layers if frozen else layers[::2]))
        self.unused = nn.Linear(width, width) if unused else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def _large(case: Case) -> nn.Module:
    torch.manual_seed(case.seed)
    unused = case.kind == "held-unused"
    return _Large(case.params["width"], case.params["frozen"], unused).to(dtype_of(case))


# -- judges


def _whole(net: nn.Module) -> int:
    return sum(nbytes(p) for p in net.parameters())


def _state_share(case: Case, net: nn.Module) -> int:
    """Bytes of one number of a master for each that a rank has of those that are trained."""
    return _precise(case).itemsize * ceil(
        sum(p.numel() for p in net.parameters() if p.requires_grad) / case.ranks
    )


def _precise(case: Case) -> torch.dtype:
    return torch.promote_types(dtype_of(case), torch.float32)


def most_of_steps(case: Case) -> int:
    """With room for a gradient where there are groups: a part without numbers, of a group that this rank has
    nothing of, may have a view of it.
    """
    net = _large(case)
    share = _state_share(case, net)
    numbers = 1 + OPTIMIZERS[case.params["optimizer"]][1] + case.params["in_groups"]
    return _whole(net) + numbers * share + share // 4


def most_in_process(case: Case) -> dict[str, int]:
    """By moment: the same, and behind a step the gradients, which are the caller's, and those of the shard,
    which `zero_grad` may forget.
    """
    net, most = _large(case), most_of_steps(case)
    gradients = sum(nbytes(p) for p in net.parameters() if p.requires_grad) + _state_share(case, net)
    return {"after a step": most + gradients, "without gradients": most}


def holds_its_share(evidence: Evidence) -> Iterator[Finding]:
    """The weights whole, and of the rank's share of those that are trained the optimizer's state, as Adam's
    two moments, and a master in fp32, which weights in fp32 or float64 need not have.
    """
    case, net = evidence.case, _large(evidence.case)
    fewest = OPTIMIZERS[case.params["optimizer"]][1] + (dtype_of(case) != _precise(case))
    low, most = _whole(net) + fewest * _state_share(case, net) - 64, most_of_steps(case)
    for answer in evidence.answers:
        held = answer.facts["held_bytes"]
        told = f"{low:,} to {most:,} bytes: the weights once, and a {case.ranks}th of the state"
        yield Finding(low <= held <= most, told, f"{held:,} bytes", answer.rank)


def steps_what_it_holds(evidence: Evidence) -> Iterator[Finding]:
    """Where bytes are counted, each weight is on a rank at least what it is made in one process;
    whether it comes to the others as well is for other cases to say.
    """
    return _on_a_rank(evidence, "layers.")


def steps_what_is_unused(evidence: Evidence) -> Iterator[Finding]:
    """A layer that nobody uses, whose gradients are zeros."""
    return _on_a_rank(evidence, "unused.")


def _on_a_rank(evidence: Evidence, beginning: str) -> Iterator[Finding]:
    """Of weights whose names begin so."""
    expected = _stepped(evidence.case, evidence.inputs["x"])
    for name, weight in expected.items():
        if not name.startswith(beginning):
            continue
        told = f"{name} after {evidence.case.params['steps']} steps, on a rank at least"
        seen = [a.tensors[f"weights 0.{name}"] for a in evidence.answers]
        wrong = difference(weight, _nearest(weight, seen))
        yield Finding(wrong is None, told, wrong or "")


def _stepped(case: Case, x: Tensor) -> dict[str, Tensor]:
    """The weights after the steps, from fp32 masters and the mean of the gradients that ranks have."""
    net = _large(case)
    precise = _precise(case)
    masters = {n: p.detach().to(precise) for n, p in net.named_parameters() if p.requires_grad}
    optimizer_class, options = _chosen(case)
    optimizer = optimizer_class(_in_groups(case, masters.values()), **options)
    for _ in range(case.params["steps"]):
        found: dict[str, list[Tensor]] = {name: [] for name in masters}
        for row in x:
            net.zero_grad()
            net(row).sum().backward()
            for name, gradients in found.items():
                p = net.get_parameter(name)
                gradients.append((torch.zeros_like(p) if p.grad is None else p.grad).to(precise))
        for name, master in masters.items():
            master.grad = torch.stack(found[name]).mean(0)
        optimizer.step()
        loaded(
            net,
            {
                name: p.detach() if name not in masters else masters[name]
                for name, p in net.named_parameters()
            },
        )
    return snapshot(net)


def _nearest(expected: Tensor, seen: Sequence[Tensor]) -> Tensor:
    """Of each element, the one among these that is nearest to what was expected."""
    together = torch.stack(list(seen))
    nearest = (together.double() - expected.double()).abs().nan_to_num(nan=torch.inf).argmin(0)
    return together.gather(0, nearest[None])[0]


def held_case(
    name: str, ranks: int, seed: int, width: int, dtype: str, kind: str = "held", **params: Any
) -> Case:
    """Layers of `width`, one of them frozen unless the case says otherwise, of which the memory is counted.
    Of the kind "held-unused" there is one that is trained and not called.

    optimizer: of OPTIMIZERS; steps: how many; in_groups: whether matrices and vectors are in groups of their
    own.
    """
    usual = {"frozen": True, "optimizer": "adam", "steps": 4, "in_groups": False}
    return Case(
        name, ranks, {"width": width, "dtype": dtype, **usual, **params}, seed, kind=kind, timeout=40.0
    )
