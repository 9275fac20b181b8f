"""What two steps of Adam leave in memory, and what they make of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil

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


def hold_two_steps(rank: Rank) -> None:
    """What two steps of Adam leave in memory. Fact: held_bytes. Answers: "weights 0.NAME"."""
    before = bytes_beforehand()
    stepped = _two_steps(rank)(lambda when: None)
    rank.fact("held_bytes", bytes_held(before + most_of_two_steps(rank.case)) - before)
    answer_weights(rank, snapshot(stepped[0]), 0)


def hold_two_steps_in_process(rank: Rank) -> None:
    """Fact: process_bytes. Answers: "weights 0.NAME"."""
    hold_in_process(
        rank,
        partial(_two_steps, rank),
        most_in_process(rank.case),
        lambda made: answer_weights(rank, snapshot(made[0]), 0),
    )


def _two_steps(rank: Rank) -> Life[tuple[nn.Module, object]]:
    """Of Adam: the net without gradients, and the optimizer."""
    net = _large(rank.case).to(rank.device)

    def life(look: Look) -> tuple[nn.Module, object]:
        optimizer = rank.student.ShardedOptimizer(
            net.parameters(), torch.optim.Adam, rank.group, lr=ADAMS_RATE
        )
        for _ in range(2):
            net(rank.inputs["x"]).sum().backward()
            optimizer.step()
            look("after a step")
            optimizer.zero_grad()
            net.zero_grad()  # gradients that were only set to zero are no optimizer's state
            look("without gradients")
        return net, optimizer

    return life


def positive_rows(case: Case, generator: torch.Generator) -> Inputs:
    """x, [ranks, 1, width], from 1 to 2: gradients of ranks that cancel out are rounded differently in one
    process, and Adam's first step is their sign.
    """
    x = 1 + torch.rand(case.ranks, 1, case.params["width"], generator=generator)
    return {"x": x.to(dtype_of(case))}


def _large(case: Case) -> nn.Module:
    """Two layers that are trained, and perhaps one between them that is not."""
    torch.manual_seed(case.seed)
    layers = [nn.Linear(case.params["width"], case.params["width"]) for _ in range(3)]
    layers[1].requires_grad_(False)
    kept = layers if case.params.get("frozen") else layers[::2]
    return nn.Sequential(*kept).to(dtype_of(case))


# -- judges


def _whole(net: nn.Module) -> int:
    return sum(nbytes(p) for p in net.parameters())


def _state_share(case: Case, net: nn.Module) -> int:
    """Bytes of one fp32 number for each that a rank has of those that are trained."""
    return 4 * ceil(sum(p.numel() for p in net.parameters() if p.requires_grad) / case.ranks)


def most_of_two_steps(case: Case) -> int:
    net = _large(case)
    share = _state_share(case, net)
    return _whole(net) + 3 * share + share // 4


def most_in_process(case: Case) -> dict[str, int]:
    """By moment: the same, and behind a step the gradients, which are the caller's."""
    net, most = _large(case), most_of_two_steps(case)
    gradients = sum(nbytes(p) for p in net.parameters() if p.requires_grad)
    return {"after a step": most + gradients, "without gradients": most}


def holds_its_share(evidence: Evidence) -> Iterator[Finding]:
    """The weights whole, and of the rank's share of those that are trained two moments and a master in fp32,
    which fp32 weights need not have.
    """
    case, net = evidence.case, _large(evidence.case)
    fewest = 2 if dtype_of(case) == torch.float32 else 3
    low, most = _whole(net) + fewest * _state_share(case, net) - 64, most_of_two_steps(case)
    for answer in evidence.answers:
        held = answer.facts["held_bytes"]
        told = f"{low:,} to {most:,} bytes: the weights once, and a {case.ranks}th of the state in fp32"
        yield Finding(low <= held <= most, told, f"{held:,} bytes", answer.rank)


def steps_what_it_holds(evidence: Evidence) -> Iterator[Finding]:
    """Where bytes are counted, each weight is on a rank at least what Adam makes of it in one process;
    whether it comes to the others as well is for other cases to say.
    """
    expected = _stepped(evidence.case, evidence.inputs["x"])
    for name, weight in expected.items():
        told = f"{name} after two steps of Adam, on a rank at least"
        seen = [a.tensors[f"weights 0.{name}"] for a in evidence.answers]
        wrong = difference(weight, _nearest(weight, seen))
        yield Finding(wrong is None, told, wrong or "")


def _stepped(case: Case, x: Tensor) -> dict[str, Tensor]:
    """The weights after two steps, from fp32 masters and the mean of the gradients that ranks have."""
    net = _large(case)
    masters = {n: p.detach().float() for n, p in net.named_parameters() if p.requires_grad}
    adam = torch.optim.Adam(masters.values(), lr=ADAMS_RATE)
    for _ in range(2):
        found: dict[str, list[Tensor]] = {name: [] for name in masters}
        for row in x:
            net.zero_grad()
            net(row).sum().backward()
            for name, gradients in found.items():
                gradients.append(net.get_parameter(name).grad.float())  # type: ignore[union-attr]
        for name, master in masters.items():
            master.grad = torch.stack(found[name]).mean(0)
        adam.step()
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


def held_case(name: str, ranks: int, seed: int, width: int, dtype: str, kind: str = "held") -> Case:
    """Layers of `width`, one of them frozen, of which the memory is counted."""
    sizes = {"width": width, "dtype": dtype, "frozen": True}
    return Case(name, ranks, sizes, seed, kind=kind, timeout=40.0)
