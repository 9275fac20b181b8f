"""The loss's share goes into its backward; tied halves are gathered; a send is waited for once answered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.pipeline import PipelinePart
from labkit.theory.schedule import Action


def check_list(part: PipelinePart, actions: list[Action]) -> None:
    seen: set[Action] = set()
    for action in actions:
        if action.kind not in ("forward", "backward"):
            raise ValueError(f"{action} ({action.kind}) is neither forward nor backward")
        if action.stage not in part.stages:
            raise ValueError(f"{action}: the stages here are {sorted(part.stages)}")
        if action.micro_batch not in range(len(part.micro_batches)):
            raise ValueError(f"{action}: there are {len(part.micro_batches)} micro-batches")
        if action in seen:
            raise ValueError(f"{action} is there twice")
        if action.kind == "backward" and action._replace(kind="forward") not in seen:
            raise ValueError(f"{action} comes before its forward")
        seen.add(action)
    for stage in sorted(part.stages):
        for number in range(len(part.micro_batches)):
            for kind in ("forward", "backward"):
                if Action(kind, stage, number) not in seen:
                    raise ValueError(f"{Action(kind, stage, number)} is missing")


class Sender:
    """Sends without waiting, and keeps what is sent until it has left."""

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.left: dict[int, tuple[dist.Work, Tensor]] = {}

    def send(self, tensor: Tensor, to: int, tag: int) -> None:
        tensor = tensor.contiguous()
        self.left[tag] = (dist.isend(tensor, group=self.group, group_dst=to, tag=tag), tensor)

    def wait_for(self, tag: int) -> None:
        """Nothing to do where nothing was sent under that number."""
        if tag in self.left:
            work, _ = self.left.pop(tag)
            work.wait()

    def close(self) -> None:
        for tag in list(self.left):
            self.wait_for(tag)


@dataclass
class Pipeline:
    part: PipelinePart
    group: dist.ProcessGroup
    sender: Sender
    asked: dict[Action, tuple[dist.Work, Tensor]] = field(default_factory=dict)
    at_home: dict[Action, Tensor] = field(default_factory=dict)
    open: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = self.part.num_stages - 1

    def owner(self, stage: int) -> int:
        return stage % self.group.size()

    def tag(self, made_by: Action) -> int:
        number = made_by.stage * len(self.part.micro_batches) + made_by.micro_batch
        return 2 * number + (made_by.kind == "backward")

    def source(self, action: Action) -> Action | None:
        """Whose result an action needs from another stage."""
        step = -1 if action.kind == "forward" else 1
        neighbour = action.stage + step
        return action._replace(stage=neighbour) if 0 <= neighbour <= self.last else None

    def ask(self, action: Action | None) -> None:
        needed = action and self.source(action)
        if needed and needed not in self.asked and self.owner(needed.stage) != self.group.rank():
            enters = max(needed.stage, action.stage)
            like = self.part.empty_input(enters, action.micro_batch)
            into = torch.empty(like.shape, dtype=like.dtype, device=like.device)
            source = self.owner(needed.stage)
            work = dist.irecv(into, group=self.group, group_src=source, tag=self.tag(needed))
            self.asked[needed] = (work, into)

    def take(self, action: Action) -> Tensor | None:
        needed = self.source(action)
        if needed is None:
            return None
        if needed in self.asked:
            work, into = self.asked.pop(needed)
            work.wait()
            return into
        return self.at_home.pop(needed)

    def give(self, made_by: Action, tensor: Tensor, stage: int) -> None:
        if self.owner(stage) == self.group.rank():
            self.at_home[made_by] = tensor
        else:
            self.sender.send(tensor, self.owner(stage), self.tag(made_by))

    def forward(self, action: Action) -> None:
        _, stage, number = action
        came = self.take(action)
        x, target = self.part.micro_batches[number]
        enters = x if came is None else came.requires_grad_(came.is_floating_point())
        out = self.part.stages[stage](enters)
        if stage == self.last:
            out = self.part.loss_fn(out, target)
            share = len(target) / sum(len(t) for _, t in self.part.micro_batches)
            self.losses.append(share * out.detach().double())
            self.open[stage, number] = (enters, out)
        else:
            self.open[stage, number] = (enters, out)
            self.give(action, out.detach(), stage + 1)

    def backward(self, action: Action) -> None:
        _, stage, number = action
        enters, out = self.open.pop((stage, number))
        if stage == self.last:
            share = len(self.part.micro_batches[number][1])
            share /= sum(len(target) for _, target in self.part.micro_batches)
            grad = torch.full_like(out, share)
        else:
            grad = self.take(action)
            self.sender.wait_for(self.tag(action._replace(kind="forward")))  # it was answered, so it came
        if out.requires_grad:
            torch.autograd.backward([out], [grad])
        if stage > 0:
            gradient = torch.zeros_like(enters) if enters.grad is None else enters.grad
            self.give(action, gradient.detach(), stage - 1)


def add_tied(part: PipelinePart) -> None:
    if part.tied is not None and part.tied.parameter.requires_grad:
        weight, group = part.tied.parameter, part.tied.group
        own = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
        if weight.grad is not None:
            own.copy_(weight.grad)
        halves = [torch.empty_like(own) for _ in range(group.size())]
        dist.all_gather(halves, own, group=group)
        weight.grad = torch.stack(halves).sum(0)


def run_schedule(part: PipelinePart, actions: list[Action], group: dist.ProcessGroup) -> Tensor | None:
    check_list(part, actions)
    pipeline = Pipeline(part, group, Sender(group))
    left = Counter(action.stage for action in actions if action.kind == "backward")
    for action, following in zip(actions, [*actions, None][1:], strict=True):
        pipeline.ask(action)
        pipeline.ask(following)
        getattr(pipeline, action.kind)(action)
        if action.kind == "backward":
            left[action.stage] -= 1
            if not left[action.stage]:
                part.gradients_ready(action.stage)
    pipeline.sender.close()
    add_tied(part)
    return torch.stack(pipeline.losses).sum() if pipeline.last in part.stages else None


def train_step(
    part: PipelinePart, actions: list[Action], optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> Tensor | None:
    optimizer.zero_grad(set_to_none=True)
    loss = run_schedule(part, actions, group)
    optimizer.step()
    return loss
