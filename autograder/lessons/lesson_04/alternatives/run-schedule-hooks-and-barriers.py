"""A gradient leaves from a hook, within backward; a barrier before and after the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.pipeline import PipelinePart
from labkit.theory.schedule import Action


def find_fault(part: PipelinePart, actions: Iterable[Action]) -> str | None:
    seen: set[tuple[str, int, int]] = set()
    for action in actions:
        kind, stage, number = action
        if kind not in ("forward", "backward"):
            return f"{kind} of micro-batch {number} on stage {stage}: neither forward nor backward"
        if stage not in part.stages:
            return f"{action}: stage {stage} is not on this rank"
        if not 0 <= number < len(part.micro_batches):
            return f"{action}: there is no micro-batch {number}"
        if tuple(action) in seen:
            return f"{action} is there twice"
        if kind == "backward" and ("forward", stage, number) not in seen:
            return f"{action} comes before its forward"
        seen.add(tuple(action))
    wanted = (
        (k, s, i)
        for k in ("forward", "backward")
        for s in part.stages
        for i in range(len(part.micro_batches))
    )
    for kind, stage, number in wanted:
        if (kind, stage, number) not in seen:
            return f"{Action(kind, stage, number)} is missing"
    return None


@dataclass
class Executor:
    part: PipelinePart
    group: dist.ProcessGroup
    held: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    local: dict[tuple[str, int, int], Tensor] = field(default_factory=dict)
    sent: list[tuple[list[dist.Work], Tensor]] = field(default_factory=list)
    loss: Tensor | None = None

    def __post_init__(self) -> None:
        self.n, self.me = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.samples = sum(t.shape[0] for _, t in self.part.micro_batches)
        self.left = Counter({s: len(self.part.micro_batches) for s in self.part.stages})

    def _global(self, stage: int) -> int:
        return dist.get_global_rank(self.group, stage % self.n)

    def _tag(self, what: str, to_stage: int, number: int) -> int:
        m = len(self.part.micro_batches)
        return (to_stage * m + number) + (self.part.num_stages * m if what == "gradient" else 0)

    def post(self, what: str, to_stage: int, number: int, tensor: Tensor) -> None:
        tensor = tensor.detach().contiguous()
        if to_stage % self.n == self.me:
            self.local[what, to_stage, number] = tensor
            return
        op = dist.P2POp(
            dist.isend, tensor, self._global(to_stage), self.group, self._tag(what, to_stage, number)
        )
        self.sent.append((dist.batch_isend_irecv([op]), tensor))

    def fetch(self, what: str, from_stage: int, to_stage: int, number: int) -> Tensor:
        if from_stage % self.n == self.me:
            return self.local.pop((what, to_stage, number))
        space = self.part.empty_input(to_stage if what == "activation" else from_stage, number)
        op = dist.P2POp(
            dist.irecv, space, self._global(from_stage), self.group, self._tag(what, to_stage, number)
        )
        for work in dist.batch_isend_irecv([op]):
            work.wait()
        return space

    def forward(self, stage: int, number: int) -> None:
        x, target = self.part.micro_batches[number]
        if stage:
            x = self.fetch("activation", stage - 1, stage, number).requires_grad_(True)
            x.register_hook(lambda gradient: self.post("gradient", stage - 1, number, gradient))
        y = self.part.stages[stage](x)
        if stage == self.part.num_stages - 1:
            y = self.part.loss_fn(y, target)
            mine = y.detach().to(torch.float64) * target.shape[0]
            self.loss = mine if self.loss is None else self.loss + mine
        else:
            self.post("activation", stage + 1, number, y)
        self.held[stage, number] = y

    def backward(self, stage: int, number: int) -> None:
        y = self.held.pop((stage, number))
        if stage == self.part.num_stages - 1:
            share = self.part.micro_batches[number][1].shape[0] / self.samples
            y.backward(torch.full_like(y, share))
        else:
            gradient = self.fetch("gradient", stage + 1, stage, number)
            if y.requires_grad:
                y.backward(gradient)
        self.left[stage] -= 1
        if self.left[stage] == 0:
            self.part.gradients_ready(stage)

    def finish(self) -> Tensor | None:
        while self.sent:
            works, _ = self.sent.pop()
            for work in works:
                work.wait()
        if self.part.tied is not None and self.part.tied.parameter.requires_grad:
            grad = self.part.tied.parameter.grad
            both = [torch.empty_like(grad) for _ in range(dist.get_world_size(self.part.tied.group))]
            dist.all_gather(both, grad, group=self.part.tied.group)
            self.part.tied.parameter.grad = sum(both[1:], start=both[0])
        return None if self.loss is None else self.loss / self.samples


def run_schedule(part: PipelinePart, actions: list[Action], group: dist.ProcessGroup) -> Tensor | None:
    fault = find_fault(part, actions)
    if fault is not None:
        raise ValueError(fault)
    dist.barrier(group)
    executor = Executor(part, group)
    for kind, stage, number in actions:
        getattr(executor, kind)(stage, number)
    result = executor.finish()
    dist.barrier(group)
    return result


def train_step(
    part: PipelinePart, actions: list[Action], optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> Tensor | None:
    for settings in optimizer.param_groups:
        for parameter in settings["params"]:
            parameter.grad = None
    loss = run_schedule(part, actions, group)
    optimizer.step()
    return loss
