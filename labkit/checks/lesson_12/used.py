"""How a layer of experts is used on a rank: once, with other calls before backward, and in steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.lesson_12.called import STEP_PHASES, Calls, Watched, both
from labkit.checks.lesson_12.gathered import FIRST_AGAIN, FIRST_TOGETHER
from labkit.checks.lesson_12.handed import tell_changed
from labkit.checks.lesson_12.layer import PARTS, make_experts
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import SCALE, STEPS, descend
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.places import enter_group


@dataclass(frozen=True)
class Built:
    """The student's module, and the parameter and modules that it was handed; another module of the
    student's, over all ranks, with an expert on each, frozen.
    """

    module: nn.Module
    router: nn.Parameter
    experts: list[nn.Module]
    other: nn.Module


def _build(rank: Rank, group: dist.ProcessGroup) -> Built:
    """The other module is made after the one that is used: what a module needs is its own. Facts of the
    router and the expert that it was handed: thawed, how many of their parameters are trained now; absent,
    how many it does not have as its own.
    """
    router, experts = nn.Parameter(rank.inputs["router"].clone()), make_experts(rank.inputs)
    router.requires_grad_(not rank.params.get("frozen_router", False))
    for expert in experts:
        expert.requires_grad_(rank.rank not in rank.params.get("frozen_experts", []))
    module = rank.student.ExpertParallel(router, experts, rank.params["k"], group)
    small = nn.Parameter(router.new_zeros(rank.case.ranks, router.shape[1]), requires_grad=False)
    one = make_experts({p: rank.inputs[p][:1] for p in PARTS})[0].requires_grad_(False)
    other = rank.student.ExpertParallel(small, [one], 1, rank.group)
    handed, kept = (small, *one.parameters()), {id(p) for p in other.parameters()}
    rank.fact("thawed", sum(p.requires_grad for p in handed))
    rank.fact("absent", sum(id(p) not in kept for p in handed))
    return Built(module, router, experts, other)


def _answer_experts(
    rank: Rank, name: str, experts: Sequence[nn.Module], what: Callable[[Tensor], Any]
) -> None:
    for number, expert in enumerate(experts):
        for parameter_name, parameter in expert.named_parameters():
            rank.answer(f"{name}.{number}.{parameter_name}", what(parameter))


def _tokens(rank: Rank, step: int, inside: bool) -> Tensor:
    """The rank's own, as they are or as a layer gives them. Their gradient is kept."""
    asks = rank.rank not in rank.params.get("plain", [])
    tokens = rank.inputs[f"tokens.{step}"].clone().requires_grad_(asks)
    if inside and asks:
        tokens = as_inside(tokens)
        tokens.retain_grad()
    return tokens


def use_once(rank: Rank) -> None:
    """Forward and backward, and between them two forwards without a graph, in training mode and in
    evaluation; of kind "again" one with a graph too, and what `_both_back` does; of kind "subgroup" one of
    another layer, in another group.
    Answers output, evaluated, grad.tokens, grad.router, grad.EXPERT.NAME; recordings forward, evaluation and
    backward, and again; fact seen: the calls of experts in forward and backward; facts evaluated and again:
    those in these; fact changed: tokens that are no longer as they were.
    """
    built = _build(rank, enter_group(rank))
    module, router, experts = built.module, built.router, built.experts
    watched = Watched(experts)
    tokens = _tokens(rank, 0, inside=rank.case.kind != "values")
    others = rank.inputs["tokens.1"].clone()
    with rank.recording("forward"):
        out = module(tokens)
    rank.answer("output", out)
    forward = watched.so_far()
    with torch.no_grad(), rank.recording("evaluation"):
        module(others)  # in training mode
    watched.so_far()
    module.eval()
    with torch.no_grad(), rank.recording("evaluation"):
        evaluated_out = module(others)
    rank.answer("evaluated", evaluated_out)
    rank.fact("evaluated", watched.so_far())
    module.train()
    if rank.case.kind == "again":
        with rank.recording("again"):
            another = _tokens(rank, 1, inside=True)[FIRST_AGAIN:]
            module(another)  # a micro-batch whose backward is not due yet
    rank.fact("again", watched.so_far())
    if rank.case.kind == "subgroup":
        built.other(others)
    with rank.attempt("gradients"), rank.recording("backward"):
        (out * rank.inputs["grad"]).sum().backward()
    rank.fact("seen", both(forward, watched.so_far()))
    tell_changed(rank, {"tokens.0": tokens, "tokens.1": others})
    rank.answer("grad.tokens", tokens.grad)
    rank.answer("grad.router", router.grad)
    _answer_experts(rank, "grad", experts, lambda p: p.grad)
    if rank.case.kind == "again":
        with rank.attempt("gradients"):
            _both_back(rank, built)


def _both_back(rank: Rank, built: Built) -> None:
    """Two forwards and one backward of the sum, which takes the last one first. Answers together.output, of
    the first one, read when the second is over, together.first and together.second, the gradients of tokens,
    and together.router.
    """
    built.router.grad = None
    first, second = (_tokens(rank, step, inside=True) for step in (1, 0))
    out = built.module(first[FIRST_TOGETHER:])
    another = built.module(second)
    rank.answer("together.output", out)
    (out.square().sum() + (another * rank.inputs["grad"]).sum()).backward()
    rank.answer("together.first", first.grad)
    rank.answer("together.second", second.grad)
    rank.answer("together.router", built.router.grad)


def _train(rank: Rank, group: dist.ProcessGroup) -> None:
    """Steps of SGD on the sum of squares of all ranks' outputs, all but the first in evaluation; the router's
    gradients are added up here. Fact bare: parameters of experts without gradient in the last step; fact
    steps: the calls of experts in each; recordings of each are those in `STEP_PHASES`.
    """
    built = _build(rank, group)
    module, router, experts = built.module, built.router, built.experts
    watched, steps = Watched(experts), list[Calls]()
    for step in range(STEPS):
        module.train(step == 0)
        module.zero_grad()
        tokens = _tokens(rank, step, inside=step > 0)
        forward, backward = (f"{phase} {step}" for phase in STEP_PHASES)
        with rank.recording(forward):
            out = module(tokens)
        with rank.recording(backward):
            (SCALE * out.square().sum()).backward()
        steps.append(watched.so_far())
        if router.grad is None:  # an answer's mistake: the other ranks wait for this one all the same
            router.grad = torch.zeros_like(router)
        dist.all_reduce(router.grad, group=group)
        descend(module)
    rank.fact("steps", steps)
    rank.answer("trained.tokens", tokens.grad)
    named = [(f"{i}.{name}", p) for i, expert in enumerate(experts) for name, p in expert.named_parameters()]
    rank.fact("bare", [name for name, p in named if p.requires_grad and p.grad is None])
    rank.answer("trained.router", router)
    _answer_experts(rank, "trained", experts, lambda p: p)


def use_once_and_train(rank: Rank) -> None:
    """What `use_once` and `_train` do."""
    use_once(rank)
    with rank.attempt("trained"):
        _train(rank, enter_group(rank))
