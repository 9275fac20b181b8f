"""Each message is a batch of one; graphs are cut by a Function of their own; the loss is a double."""

import collections
from functools import cache


class _Arrived(torch.autograd.Function):
    """What came by mail, with a place for its gradient."""

    @staticmethod
    def forward(ctx, anchor, tensor, place):
        ctx.place = place
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.place.append(grad)
        return None, None, None


def check_list(part, actions):
    wanted = collections.Counter(
        Action(kind, stage, i)
        for stage in part.stages
        for i in range(len(part.micro_batches))
        for kind in ("forward", "backward")
    )
    for position, action in enumerate(actions):
        if wanted[action] < 1:
            raise ValueError(f"action {position}, {action}, cannot be done (again) on this rank")
        if action.kind == "backward" and wanted[Action("forward", action.stage, action.micro_batch)]:
            raise ValueError(f"action {position}, {action}, has no forward before it")
        wanted[action] -= 1
    for action in +wanted:
        raise ValueError(f"{action} is nowhere in the list")


def run_schedule(part, actions, group):
    check_list(part, actions)
    me, ranks = dist.get_rank(group), dist.get_world_size(group)
    m, last = len(part.micro_batches), part.num_stages - 1
    samples = sum(x.shape[0] for x, _ in part.micro_batches)
    works, alive, local, open_, total = [], [], {}, {}, 0.0
    anchor = torch.zeros((), requires_grad=True)
    to_do = collections.Counter(a.stage for a in actions if a.kind == "backward")

    @cache
    def tag(kind, stage, i):
        return i + m * (stage + part.num_stages * ("forward", "backward").index(kind))

    def start(call, tensor, stage, number):
        return dist.batch_isend_irecv(
            [dist.P2POp(call, tensor, group=group, tag=number, group_peer=stage % ranks)]
        )

    def send(kind, stage, i, tensor, to):
        if to % ranks == me:
            local[kind, stage, i] = tensor.detach()
        else:
            alive.append(tensor.detach().contiguous())
            works.extend(start(dist.isend, alive[-1], to, tag(kind, stage, i)))

    def receive(kind, stage, i, shape_of):
        if stage % ranks == me:
            return local.pop((kind, stage, i))
        into = part.empty_input(shape_of, i)
        for work in start(dist.irecv, into, stage, tag(kind, stage, i)):
            work.wait()
        return into

    old = None if part.tied is None else part.tied.parameter.grad
    if old is not None:
        part.tied.parameter.grad = torch.zeros_like(old)
    for kind, stage, i in ((a.kind, a.stage, a.micro_batch) for a in actions):
        x, target = part.micro_batches[i]
        if kind == "forward":
            place = []
            if stage:
                x = _Arrived.apply(anchor, receive("forward", stage - 1, i, stage), place)
            y = part.stages[stage](x)
            if stage == last:
                y = part.loss_fn(y, target) * (target.shape[0] / samples)
                total += y.item()
            else:
                send(kind, stage, i, y, stage + 1)
            open_[stage, i] = y, place
            del x, y, place
        else:
            y, place = open_.pop((stage, i))
            grad = None if stage == last else receive("backward", stage + 1, i, stage + 1)
            if y.requires_grad:
                y.backward(grad)
            del grad
            if stage:
                send(kind, stage, i, place.pop(), stage - 1)
            del y, place
            to_do[stage] -= 1
            if to_do[stage] == 0:
                part.gradients_ready(stage)
    for work in works:
        work.wait()
    if part.tied is not None and part.tied.parameter.requires_grad:
        dist.all_reduce(part.tied.parameter.grad, group=part.tied.group)
        if old is not None:
            part.tied.parameter.grad.add_(old)
    return torch.tensor(total, dtype=torch.float64) if last in part.stages else None


def train_step(part, actions, optimizer, group):
    for entry in optimizer.param_groups:
        for parameter in entry["params"]:
            parameter.grad = None
    loss = run_schedule(part, actions, group)
    optimizer.step()
    return loss
