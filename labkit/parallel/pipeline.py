"""1F1B as a list of actions, and what does the actions on a rank (lesson 04)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.pipeline import PipelinePart
from labkit.theory.schedule import Action


def one_f_one_b_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """Warm-up forwards, then forward and backward in turn, then the backwards that are left."""
    warm_up = min(num_stages - stage - 1, num_micro_batches)
    forwards = [Action("forward", stage, i) for i in range(num_micro_batches)]
    backwards = [Action("backward", stage, i) for i in range(num_micro_batches)]
    steady = [action for pair in zip(forwards[warm_up:], backwards, strict=False) for action in pair]
    return forwards[:warm_up] + steady + backwards[num_micro_batches - warm_up :]


def run_schedule(part: PipelinePart, actions: Sequence[Action], group: dist.ProcessGroup) -> Tensor | None:
    """Do this rank's actions, and add the gradients of the batch's mean loss to the .grad of its stage.

    The rank has one stage, whose number is its place in the group. Returns the loss on the last stage, None
    elsewhere.
    """
    worker = _Worker(part, group)
    for number, action in enumerate(actions):
        for soon in actions[number : number + 2]:  # the next one's message travels while this one works
            worker.expect(soon)
        worker.do(action)
    worker.wait_until_sent()
    if part.tied is not None:
        dist.all_reduce(part.tied.parameter.grad, group=part.tied.group)
    return torch.stack(worker.losses).sum() if worker.losses else None


class _Worker:
    """One stage at work: what it holds for backward, and the messages it waits for."""

    def __init__(self, part: PipelinePart, group: dist.ProcessGroup) -> None:
        self.part, self.group = part, group
        self.stage, self.last = dist.get_rank(group), part.num_stages - 1
        self.module = part.stages[self.stage]
        self.samples = sum(len(target) for _, target in part.micro_batches)
        self.backwards_left = len(part.micro_batches)
        self.held: dict[int, tuple[Tensor, Tensor]] = {}  # micro-batch -> what went in, what came out
        self.on_the_way: list[tuple[dist.Work | None, Tensor]] = []  # a tensor must live until it has left
        self.coming: dict[Action, tuple[dist.Work | None, Tensor]] = {}
        self.losses: list[Tensor] = []

    def expect(self, action: Action) -> None:
        """Get ready for the message that an action will need."""
        comes_from = self._neighbour_before(action)
        if action in self.coming or comes_from is None:
            return
        space = self.part.empty_input(self.stage + (action.kind == "backward"), action.micro_batch)
        work = dist.irecv(space, group=self.group, group_src=comes_from, tag=self._tag(action))
        self.coming[action] = work, space

    def do(self, action: Action) -> None:
        """One forward or backward of one micro-batch."""
        (self._forward if action.kind == "forward" else self._backward)(action)

    def wait_until_sent(self) -> None:
        """Return when every message has left."""
        for work, _ in self.on_the_way:
            if work is not None:
                work.wait()

    def _forward(self, action: Action) -> None:
        x, target = self.part.micro_batches[action.micro_batch]
        if self.stage > 0:
            x = self._received(action).requires_grad_()
        out = self.module(x)
        if self.stage == self.last:
            out = self.part.loss_fn(out, target) * (len(target) / self.samples)
            self.losses.append(out.detach())
        else:
            self._send(out, self.stage + 1, action)
        self.held[action.micro_batch] = x, out

    def _backward(self, action: Action) -> None:
        x, out = self.held.pop(action.micro_batch)
        out.backward(None if self.stage == self.last else self._received(action))
        if self.stage > 0:
            assert x.grad is not None
            self._send(x.grad, self.stage - 1, action)
        self.backwards_left -= 1
        if self.backwards_left == 0:
            self.part.gradients_ready(self.stage)

    def _send(self, tensor: Tensor, to: int, action: Action) -> None:
        tensor = tensor.detach().contiguous()
        work = dist.isend(tensor, group=self.group, group_dst=to, tag=self._tag(action))
        self.on_the_way.append((work, tensor))

    def _received(self, action: Action) -> Tensor:
        work, tensor = self.coming.pop(action)
        if work is not None:
            work.wait()
        return tensor

    def _neighbour_before(self, action: Action) -> int | None:
        """The stage whose result the action needs; None where it needs none."""
        stage = self.stage + (1 if action.kind == "backward" else -1)
        return stage if 0 <= stage <= self.last else None

    def _tag(self, action: Action) -> int:
        return 2 * action.micro_batch + (action.kind == "backward")
