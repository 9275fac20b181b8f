"""One function: it receives when it needs to, keeps its sends in a list, and sums the loss as a number."""

import torch
import torch.distributed as dist


def run_schedule(part, actions, group):
    _look_over(part, actions)
    me, ranks, m = dist.get_rank(group), dist.get_world_size(group), len(part.micro_batches)
    batch = sum(y.shape[0] for _, y in part.micro_batches)
    own_mail, sending, kept = {}, [], {}
    left = dict.fromkeys(part.stages, m)
    total = 0.0

    def tag(kind, stage, i):
        return (stage * m + i) * 2 + (kind == "backward")

    def post(kind, from_stage, to_stage, i, value):
        if to_stage % ranks == me:
            own_mail[kind, to_stage, i] = value
        else:
            value = value.contiguous()
            sending.append(
                (
                    value,
                    dist.isend(value, group_dst=to_stage % ranks, group=group, tag=tag(kind, to_stage, i)),
                )
            )

    def fetch(kind, stage, from_stage, i, like):
        if from_stage % ranks == me:
            return own_mail.pop((kind, stage, i))
        dist.recv(like, group_src=from_stage % ranks, group=group, tag=tag(kind, stage, i))
        return like

    for kind, stage, i in actions:
        first, last = stage == 0, stage == part.num_stages - 1
        if kind == "forward":
            x, target = part.micro_batches[i]
            if not first:
                x = fetch(kind, stage, stage - 1, i, part.empty_input(stage, i)).requires_grad_(True)
            y = part.stages[stage](x)
            if last:
                y = part.loss_fn(y, target) * len(target) / batch
                total += y.item()
            else:
                post(kind, stage, stage + 1, i, y.detach())
            kept[stage, i] = (x, y)
        else:
            x, y = kept.pop((stage, i))
            gradient = None if last else fetch(kind, stage, stage + 1, i, part.empty_input(stage + 1, i))
            if y.requires_grad:
                torch.autograd.backward(y, gradient)
            if not first:
                post(kind, stage, stage - 1, i, x.grad)
            left[stage] -= 1
            if not left[stage]:
                part.gradients_ready(stage)
        del x, y
    for _, work in sending:
        work.wait()
    if part.tied is not None and part.tied.parameter.requires_grad:
        dist.all_reduce(part.tied.parameter.grad, group=part.tied.group)
    return torch.tensor(total) if part.num_stages - 1 in part.stages else None


def _look_over(part, actions):
    seen = set()
    for action in actions:
        kind, stage, i = action
        here = stage in part.stages and i in range(len(part.micro_batches))
        if not here or kind not in {"forward", "backward"}:
            raise ValueError(f"cannot do {action} here")
        if kind == "backward" and ("forward", stage, i) not in seen:
            raise ValueError(f"{action} comes before its forward")
        if (kind, stage, i) in seen:
            raise ValueError(f"{action} for the second time")
        seen.add((kind, stage, i))
    for stage in part.stages:
        for i in range(len(part.micro_batches)):
            if ("backward", stage, i) not in seen:
                raise ValueError(f"no backward of micro-batch {i} on stage {stage}")


def train_step(part, actions, optimizer, group):
    for each in optimizer.param_groups:
        for parameter in each["params"]:
            parameter.grad = None
    loss = run_schedule(part, actions, group)
    optimizer.step()
    optimizer.zero_grad()
    return loss
