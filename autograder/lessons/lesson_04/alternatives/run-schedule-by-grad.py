"""Gradients are asked for by torch.autograd.grad and added up by hand; receives are started when needed."""


class Run:
    """One batch on one rank."""

    def __init__(self, part, group):
        self.part, self.group = part, group
        self.me, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.count, self.last = len(part.micro_batches), part.num_stages - 1
        self.samples = sum(len(target) for _, target in part.micro_batches)
        self.kept, self.here, self.sent, self.losses = {}, {}, [], []

    def give(self, kind, stage, number, tensor):
        """To the neighbour that waits for what `kind` made on `stage`."""
        to = (stage + (1 if kind == "forward" else -1)) % self.ranks
        tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
        if to == self.me:
            self.here[kind, stage, number] = tensor
            return
        tag = (stage * self.count + number) * 2 + (kind == "forward")
        self.sent.append((tensor, dist.isend(tensor, group_dst=to, group=self.group, tag=tag)))

    def take(self, kind, stage, number, like):
        """What `kind` made on `stage`."""
        if stage % self.ranks == self.me:
            return self.here.pop((kind, stage, number))
        tensor = torch.empty_like(like, memory_format=torch.contiguous_format)
        tag = (stage * self.count + number) * 2 + (kind == "forward")
        dist.recv(tensor, group_src=stage % self.ranks, group=self.group, tag=tag)
        return tensor

    def forward(self, stage, number):
        x, target = self.part.micro_batches[number]
        if stage:
            x = self.take("forward", stage - 1, number, self.part.empty_input(stage, number))
            x.requires_grad_()
        out = self.part.stages[stage](x)
        if stage == self.last:
            out = self.part.loss_fn(out, target) * (len(target) / self.samples)
            self.losses.append(out.detach())
        else:
            self.give("forward", stage, number, out)
        self.kept[stage, number] = (x, out)

    def backward(self, stage, number):
        x, out = self.kept.pop((stage, number))
        grad = None
        if stage < self.last:
            grad = self.take("backward", stage + 1, number, out)
        weights = [w for w in self.part.stages[stage].parameters() if w.requires_grad]
        inputs = [*weights, x] if stage else weights
        found = torch.autograd.grad(out, inputs, grad, allow_unused=True) if inputs else ()
        for weight, more in zip(weights, found[: len(weights)], strict=True):
            if more is not None:
                weight.grad = more if weight.grad is None else weight.grad + more
        if stage:
            self.give("backward", stage, number, found[-1])


def _refuse_bad(part, actions):
    todo = {
        (kind, s, i)
        for kind in ("forward", "backward")
        for s in part.stages
        for i in range(len(part.micro_batches))
    }
    done = set()
    for a in actions:
        this = (a.kind, a.stage, a.micro_batch)
        if this not in todo:
            raise ValueError(f"{a} is not to be done here")
        if this in done:
            raise ValueError(f"{a} is there twice")
        if a.kind == "backward" and ("forward", *this[1:]) not in done:
            raise ValueError(f"{a} comes before its forward")
        done.add(this)
    for kind, stage, number in sorted(todo - done, key=str):
        raise ValueError(f"{Action(kind, stage, number)} is missing")


def run_schedule(part, actions, group):
    _refuse_bad(part, actions)
    run = Run(part, group)
    left = dict.fromkeys(part.stages, run.count)
    for action in actions:
        if action.kind == "forward":
            run.forward(action.stage, action.micro_batch)
            continue
        run.backward(action.stage, action.micro_batch)
        left[action.stage] -= 1
        if not left[action.stage]:
            part.gradients_ready(action.stage)
    if part.tied is not None and part.tied.parameter.requires_grad:
        dist.all_reduce(part.tied.parameter.grad, group=part.tied.group)
    for _, work in run.sent:
        work.wait()
    return sum(run.losses) if run.losses else None


def train_step(part, actions, optimizer, group):
    for stage in part.stages.values():
        stage.zero_grad(set_to_none=False)
    loss = run_schedule(part, actions, group)
    optimizer.step()
    return loss
