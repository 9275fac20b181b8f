"""Trains a small net whose weights are sharded, and looks at it at each step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from labkit.checks.case import Case
from labkit.checks.lesson_08.masters import BF16_STEPS, TwoSlopes
from labkit.checks.lesson_08.net import STEPS, answer_weights, handed_net, loss_with, step_plainly, uses_both
from labkit.checks.lesson_08.turns import Turns
from labkit.checks.lesson_08.whole import Whole
from labkit.checks.rank import Rank
from labkit.checks.shared.places import enter_group

Pass = Callable[[Rank, nn.Module, int, Sequence[nn.Module]], None]  # all micro-batches of a step


def train(rank: Rank, one_step: Pass) -> None:
    """Answers "output STEP.MICRO", "input_grad STEP.MICRO", "weights STEP.NAME"; recordings "step STEP",
    "weights STEP"; facts: trained, of each shard; foreign, how many of them are another module's too, which
    was sharded before and is in each backward, where the case says so; those of `Whole` and `Turns`.
    """
    group, net = enter_group(rank), handed_net(rank)
    others = [handed_net(rank)] if rank.params.get("another") else []
    prefetch = rank.params["prefetch"]
    beside = [rank.student.FullyShardedModule(other, other.units(), group, prefetch) for other in others]
    foreign = [shard for other in beside for shard in other.shards]
    whole, turns = Whole(net, net.units(), dist.get_world_size(group)), Turns(net.units())
    sharded = rank.student.FullyShardedModule(net, net.units(), group, rank.params["prefetch"])
    whole.watch(sharded)
    turns.watch(sharded)
    rank.fact("trained", [shard.requires_grad for shard in sharded.shards])
    rank.fact("foreign", sum(any(shard is theirs for theirs in foreign) for shard in sharded.shards))
    for step in range(STEPS):
        with rank.recording(f"step {step}") as begin:
            one_step(rank, sharded, step, beside)
        turns.tell(rank, step, begin)
        whole.rest("after backward")
        step_plainly(sharded.shards)
        with rank.recording(f"weights {step}"):
            weights = sharded.full_weights()
        whole.rest("after full_weights")
        answer_weights(rank, weights, step)
    whole.tell(rank)


def each_by_itself(rank: Rank, sharded: nn.Module, step: int, beside: Sequence[nn.Module]) -> None:
    """Forward and backward of one micro-batch after the other."""
    for m in range(rank.params["micro_batches"]):
        x = rank.inputs["x"][step, m].clone().requires_grad_(rank.params.get("input_grad", True))
        out = sharded(x, both=uses_both(rank.case, rank.rank, step))
        loss_with(out, rank.inputs["target"][step, m], beside, x).backward()
        rank.answer(f"output {step}.{m}", out)
        rank.answer(f"input_grad {step}.{m}", x.grad)


def with_evaluations(rank: Rank, sharded: nn.Module, step: int, beside: Sequence[nn.Module]) -> None:
    """A forward that no backward follows, and one without gradients, before backward and after it. Every
    other step is made in eval(), which asks for gradients as well.
    """
    _evaluate(rank, sharded, step)
    sharded.train(step % 2 == 0)
    each_by_itself(rank, sharded, step, beside)
    sharded.train()
    _evaluate(rank, sharded, step)


def _evaluate(rank: Rank, sharded: nn.Module, step: int) -> None:
    both = uses_both(rank.case, rank.rank, step)
    sharded(rank.inputs["x"][step, 0], both)
    sharded.eval()
    with torch.no_grad():
        sharded(rank.inputs["x"][step, 0], both)
    sharded.train()


def all_at_once(rank: Rank, sharded: nn.Module, step: int, beside: Sequence[nn.Module]) -> None:
    """Forward of all micro-batches, and then one backward."""
    micro_batches = range(rank.params["micro_batches"])
    xs = [rank.inputs["x"][step, m].clone().requires_grad_() for m in micro_batches]
    outs = [sharded(x, uses_both(rank.case, rank.rank, step)) for x in xs]
    of_each = zip(outs, rank.inputs["target"][step], xs, strict=True)
    torch.stack([loss_with(out, target, beside, x) for out, target, x in of_each]).sum().backward()
    for m, (x, out) in enumerate(zip(xs, outs, strict=True)):
        rank.answer(f"output {step}.{m}", out)
        rank.answer(f"input_grad {step}.{m}", x.grad)


def train_in_bf16(rank: Rank) -> None:
    """Many steps whose changes are too small for the weights. Answers: "weights 0.w"; recording: "step 0";
    facts: those of `Whole`.
    """
    net = TwoSlopes(rank.inputs["w"])
    whole = Whole(net, list(net.units), rank.world_size)
    sharded = rank.student.FullyShardedModule(net, list(net.units), rank.group, 1)
    whole.watch(sharded)
    optimizer = torch.optim.SGD(sharded.shards, lr=rank.params["lr"])
    for step in range(BF16_STEPS):
        with rank.recording("step 0") if step == 0 else contextlib.nullcontext():
            for slope in rank.inputs["slope"][step % 2]:
                sharded(slope).backward()
        whole.rest("after backward")
        optimizer.step()
        optimizer.zero_grad()
    weights = sharded.full_weights()
    whole.rest("after full_weights")
    whole.tell(rank)
    rank.answer("weights 0.w", torch.cat([weights[f"units.{n}.weight"] for n in range(2)]))


def homeless(rank: Rank) -> None:
    """Leave one unit out of the list, or a parameter that is in none. Fact: refusal."""
    net = handed_net(rank)
    units = [unit for name, unit in net.named_children() if name not in forgotten(rank.case)]
    with rank.expect_error("refusal"):
        rank.student.FullyShardedModule(net, units, rank.group, 1)


def forgotten(case: Case) -> list[str]:
    """The unit that is left out of the list, or the parameter."""
    return [case.params.get("forgotten", "third")]
