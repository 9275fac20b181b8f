"""Mistakes in lesson 04's executor, on real ranks."""

from __future__ import annotations

from autograder.mutants import Mutant

RUN = "04.run-schedule"

SHARE = "out = part.loss_fn(out, target) * (len(target) / samples)"
ISEND = """work = dist.isend(tensor, group=self.group, group_dst=to, tag=self.tag(*made_by))
        self.on_the_way.append((work, tensor))"""
TO_MYSELF = """if to == self.rank:
            self.to_myself[self.tag(*made_by)] = tensor
            return"""
LAST = """if backwards_left[stage] == 0:
            part.gradients_ready(stage)"""
TIED = "dist.all_reduce(part.tied.parameter.grad, group=part.tied.group)"
RECV = "self.coming[tag] = dist.irecv(into, group=self.group, group_src=source, tag=tag), into"
AHEAD = "actions[number : number + 2]"
STEP = """optimizer.zero_grad()
    loss = run_schedule(part, actions, group)
    optimizer.step()
    return loss"""

EARLY_STEP = """optimizer.zero_grad()
    done: dict[Tensor, int] = {}

    def early(parameter: Tensor) -> None:
        done[parameter] = done.get(parameter, 0) + 1
        if done[parameter] == len(part.micro_batches) - 1:
            parameter.data.add_(parameter.grad, alpha=-optimizer.param_groups[0]["lr"])

    for parameter in optimizer.param_groups[0]["params"]:
        parameter.register_post_accumulate_grad_hook(early)
    return run_schedule(part, actions, group)"""
MANY_STEPS = """optimizer.zero_grad()

    def step(parameter: Tensor) -> None:
        parameter.data.add_(parameter.grad, alpha=-optimizer.param_groups[0]["lr"])
        parameter.grad = None

    for parameter in optimizer.param_groups[0]["params"]:
        parameter.register_post_accumulate_grad_hook(step)
    return run_schedule(part, actions, group)"""

EXECUTOR_MUTANTS = [
    Mutant("P1-not-over-m", RUN, ("loss", "gradients", "trained-weights"), SHARE,
           "out = part.loss_fn(out, target)", "the mean losses are added up: gradients times m"),
    Mutant("mean-of-means", RUN, ("unequal-micro-batches",), SHARE,
           "out = part.loss_fn(out, target) / len(part.micro_batches)",
           "each micro-batch counts the same, however many samples it has"),
    Mutant("divided-twice", RUN, ("loss", "gradients"), SHARE,
           "out = part.loss_fn(out, target) * (len(target) / samples) / len(part.micro_batches)",
           "the loss is divided by m as well as weighted"),
    Mutant("loss-of-last", RUN, ("loss",), "torch.stack(losses).sum()", "losses[-1]",
           "the loss of the last micro-batch is returned"),
    Mutant("loss-as-sum", RUN, ("loss",), "torch.stack(losses).sum()",
           "torch.stack(losses).sum() * len(part.micro_batches)", "the loss returned is m times too large"),
    Mutant("P3-zero-inside", RUN, ("gradients", "trained-weights"), "x, out = held.pop((stage, i))",
           "x, out = held.pop((stage, i))\n        part.stages[stage].zero_grad()",
           "gradients are cleared before each backward: the last micro-batch alone counts"),
    Mutant("P4-no-zero-grad", RUN, ("trained-weights",), STEP,
           "loss = run_schedule(part, actions, group)\n    optimizer.step()\n    return loss",
           "gradients are never cleared: the second step has those of the first in it"),
    Mutant("P6-no-flush", RUN, ("trained-weights",), STEP, EARLY_STEP,
           "the optimizer steps before the last micro-batch's backward, whose gradient is left behind"),
    Mutant("P7-step-a-micro-batch", RUN, ("trained-weights",), STEP, MANY_STEPS,
           "an update after each micro-batch's backward"),
    Mutant("P8-received-needs-no-grad", RUN, ("gradients",),
           "x.requires_grad_()", "x.detach_()",
           "what was received does not require a gradient: nothing goes back"),
    Mutant("P10-blocking-send", RUN, ("any-schedule",), (ISEND, AHEAD),
           ("dist.send(tensor, group=self.group, group_dst=to, tag=self.tag(*made_by))",
            "actions[number : number + 1]"),
           "a send that waits for its receiver: two neighbours both send and wait for ever"),
    Mutant("no-tags", RUN, ("any-schedule",),
           ("group_dst=to, tag=self.tag(*made_by))", "group_src=source, tag=tag)"),
           ("group_dst=to)", "group_src=source)"), "messages are told apart by their order alone"),
    Mutant("tag-without-micro-batch", RUN, ("any-schedule",),
           "return 2 * (stage * len(self.part.micro_batches) + micro_batch) + (kind == \"backward\")",
           "return 2 * stage + (kind == \"backward\")", "messages of two micro-batches have the same tag"),
    Mutant("shapes-sent-too", RUN, ("messages",), (ISEND, RECV),
           (ISEND + "\n        shape = torch.tensor(tensor.shape)\n        self.on_the_way.append("
            "(dist.isend(shape, group=self.group, group_dst=to, tag=self.tag(*made_by) + 9999), shape))",
            RECV + "\n            shape = torch.tensor(into.shape)\n            self.coming[tag + 9999] = "
            "dist.irecv(shape, group=self.group, group_src=source, tag=tag + 9999), shape"),
           "each message is followed by another with its shape, which the receiver knows already"),
    Mutant("all-gathers", RUN, ("messages",), "mail.wait_until_sent()\n    if",
           "mail.wait_until_sent()\n    dist.barrier(group=group)\n    if", "a barrier after each batch"),
    Mutant("own-schedule", RUN, ("follows-the-list",), "do = {",
           "actions = sorted(actions, key=lambda a: (a.kind == 'backward', a.stage, a.micro_batch))\n"
           "    do = {",
           "the list is sorted into GPipe's order first"),
    Mutant("retains-graph", RUN, ("in-flight",),
           ("out.backward()", "stage + 1, i)))", "held.pop((stage, i))"),
           ("out.backward(retain_graph=True)", "stage + 1, i)), retain_graph=True)",
            "held[stage, i]"),
           "graphs are kept after their backward"),
    Mutant("P19-tied-not-summed", RUN, ("tied-embedding",), TIED, "pass", "each copy keeps its own half"),
    Mutant("tied-averaged", RUN, ("tied-embedding",), TIED, TIED + "\n        part.tied.parameter.grad /= 2",
           "the two halves are averaged: they are parts of a sum, not two estimates of it"),
    Mutant("tied-before-backward", RUN, ("tied-embedding",), (TIED, "mail.wait_until_sent()\n    if"),
           ("pass", "mail.wait_until_sent()\n    if part.tied is not None:\n        dist.all_reduce("
            "part.tied.parameter.data, group=part.tied.group)\n    if"),
           "the weights are summed, not their gradients"),
    Mutant("P20-ready-after-first", RUN, ("gradients-ready",), LAST,
           LAST.replace("== 0", "== len(part.micro_batches) - 1"),
           "data parallelism averages after the first backward: what comes later is not averaged"),
    Mutant("ready-every-time", RUN, ("gradients-ready",), LAST, "part.gradients_ready(stage)",
           "gradients are averaged after every micro-batch"),
    Mutant("ready-at-the-end", RUN, ("gradients-ready",), (LAST, "mail.wait_until_sent()\n    if"),
           ("", "for stage in part.stages:\n        part.gradients_ready(stage)\n"
            "    mail.wait_until_sent()\n    if"),
           "all stages are said to be ready after the last action: nothing can overlap"),
    Mutant("ready-never", RUN, ("gradients-ready",), LAST, "", "nobody is told"),
    Mutant("few-not-expected", RUN, ("few-micro-batches",), "check_list(part, actions)\n    mail",
           "assert len(part.micro_batches) >= part.num_stages\n    check_list(part, actions)\n    mail",
           "fewer micro-batches than stages are refused"),
    Mutant("sends-to-itself", RUN, ("one-rank",), TO_MYSELF, "", "a rank sends to itself"),
    Mutant("no-list-check", RUN, ("refuses-bad-lists",), "check_list(part, actions)\n    mail", "mail",
           "a bad list fails with a KeyError of the executor's bookkeeping"),
    Mutant("silent-missing-backward", RUN, ("refuses-bad-lists",),
           'if Action("backward", stage, micro_batch) not in done:', "if False:",
           "a list without one of its backwards is run, and trains on fewer samples"),
    Mutant("zero-gradients", RUN, ("gradients", "trained-weights"), "mail.wait_until_sent()\n    if",
           "mail.wait_until_sent()\n    for stage in part.stages.values():\n"
           "        for p in stage.parameters():\n            p.grad = torch.zeros_like(p)\n    if",
           "gradients that are all zero"),
]  # fmt: skip
