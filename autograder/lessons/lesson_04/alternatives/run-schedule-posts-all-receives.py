"""All receives are posted before the first action, in the order of the list."""

import torch
import torch.distributed as dist


class Executor:
    def __init__(self, part, actions, group):
        self.part, self.group = part, group
        self.rank, self.size = group.rank(), group.size()
        self.samples = [len(target) for _, target in part.micro_batches]
        self.boxes, self.out, self.graphs, self.losses = {}, [], {}, []
        for kind, stage, i in actions:
            source = stage - 1 if kind == "forward" else stage + 1
            if 0 <= source < part.num_stages and source % self.size != self.rank:
                box = part.empty_input(max(stage, source), i)
                work = dist.irecv(
                    box, group=group, group_src=source % self.size, tag=self.tag(kind, stage, i)
                )
                self.boxes[kind, stage, i] = box, work

    def tag(self, kind, stage, i):
        return (i * self.part.num_stages + stage) * 2 + (0 if kind == "forward" else 1)

    def take(self, kind, stage, i):
        box, work = self.boxes.pop((kind, stage, i))
        if work is not None:
            work.wait()
        return box

    def give(self, kind, stage, i, value):
        if stage % self.size == self.rank:
            self.boxes[kind, stage, i] = value, None
            return
        value = value.detach().clone(memory_format=torch.contiguous_format)
        work = dist.isend(value, group=self.group, group_dst=stage % self.size, tag=self.tag(kind, stage, i))
        self.out.append((value, work))

    def forward(self, stage, i):
        x, target = self.part.micro_batches[i]
        if stage:
            x = self.take("forward", stage, i).detach().requires_grad_()
        y = self.part.stages[stage](x)
        if stage + 1 == self.part.num_stages:
            y = self.part.loss_fn(y, target) * (self.samples[i] / sum(self.samples))
            self.losses.append(y.detach())
        else:
            self.give("forward", stage + 1, i, y.detach())
        self.graphs[stage, i] = x, y

    def backward(self, stage, i):
        x, y = self.graphs.pop((stage, i))
        if stage + 1 == self.part.num_stages:
            y.backward()
        else:
            gradient = self.take("backward", stage, i)
            if y.grad_fn is not None:
                y.backward(gradient=gradient)
        if stage:
            self.give("backward", stage - 1, i, x.grad)


def run_schedule(part, actions, group):
    check(part, actions)
    executor = Executor(part, actions, group)
    last_backward = {a.stage: n for n, a in enumerate(actions) if a.kind == "backward"}
    for number, action in enumerate(actions):
        getattr(executor, action.kind)(action.stage, action.micro_batch)
        if last_backward[action.stage] == number:
            part.gradients_ready(action.stage)
    for _, work in executor.out:
        work.wait()
    if part.tied and part.tied.parameter.requires_grad:
        dist.all_reduce(part.tied.parameter.grad, group=part.tied.group)
    return sum(executor.losses) if executor.losses else None


def check(part, actions):
    forwards, backwards = set(), set()
    for action in actions:
        place = action.stage, action.micro_batch
        if action.stage not in part.stages:
            raise ValueError(f"no stage for {action}")
        if action.kind not in ("forward", "backward"):
            raise ValueError(f"no way to do {action}")
        if action.micro_batch < 0 or action.micro_batch >= len(part.micro_batches):
            raise ValueError(f"no micro-batch for {action}")
        if place in (forwards if action.kind == "forward" else backwards):
            raise ValueError(f"once is enough: {action}")
        if action.kind == "forward":
            forwards.add(place)
        elif place in forwards:
            backwards.add(place)
        else:
            raise ValueError(f"too early: {action}")
    wanted = {(stage, i) for stage in part.stages for i in range(len(part.micro_batches))}
    for stage, i in sorted(wanted - backwards):
        raise ValueError(f"missing: backward of micro-batch {i} on stage {stage}")


def train_step(part, actions, optimizer, group):
    optimizer.zero_grad(set_to_none=True)
    loss = run_schedule(part, actions, group)
    optimizer.step()
    return loss
