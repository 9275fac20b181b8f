"""Wrong answers to lesson 03: replicas and averages. Ids with D or P and a number name a row of the list of
known mistakes.
"""

from __future__ import annotations

from autograder.mutants import Mutant

BROADCAST = "03.broadcast-module"
AVERAGE = "03.average-gradients"

OF_REPLICAS = [
    Mutant(
        "D4-nothing",
        BROADCAST,
        (
            "parameters",
            "buffers",
            "subgroup",
        ),
        "        dist.broadcast(tensor.detach(), group_src=0, group=group)\n",
        "        pass\n",
        "replicas stay as they are",
    ),
    Mutant(
        "D5-no-buffers",
        BROADCAST,
        (
            "buffers",
            "communication",
        ),
        "    for tensor in [*module.parameters(), *module.buffers()]:\n",
        "    for tensor in module.parameters():\n",
        "buffers are left out",
    ),
    Mutant(
        "state-dict-with-shared-twice",
        BROADCAST,
        ("communication",),
        "    for tensor in [*module.parameters(), *module.buffers()]:\n",
        "    for tensor in module.state_dict(keep_vars=True).values():\n",
        "a tensor with two names is sent twice",
    ),
    Mutant(
        "src-of-the-job",
        BROADCAST,
        ("subgroup",),
        "        dist.broadcast(tensor.detach(), group_src=0, group=group)\n",
        "        dist.broadcast(tensor.detach(), src=0, group=group)\n",
        "rank 0 of the job, which is not in every group",
    ),
    Mutant(
        "world",
        BROADCAST,
        ("subgroup",),
        "        dist.broadcast(tensor.detach(), group_src=0, group=group)\n",
        "        dist.broadcast(tensor.detach(), src=0)\n",
        "all ranks of the job",
    ),
    Mutant(
        "last-rank",
        BROADCAST,
        (
            "parameters",
            "buffers",
        ),
        "        dist.broadcast(tensor.detach(), group_src=0, group=group)\n",
        ("        dist.broadcast(tensor.detach(), group_src=dist.get_world_size(group) - 1, group=group)\n"),
        "from the last rank",
    ),
    Mutant(
        "new-tensors",
        BROADCAST,
        ("in-place",),
        "        dist.broadcast(tensor.detach(), group_src=0, group=group)\n",
        (
            "        received = tensor.detach().clone()\n"
            "        dist.broadcast(received, group_src=0, group=group)\n"
            "        tensor.data = received\n"
        ),
        "other storage than the optimizer's",
    ),
    Mutant(
        "averaged",
        BROADCAST,
        (
            "parameters",
            "communication",
        ),
        "        dist.broadcast(tensor.detach(), group_src=0, group=group)\n",
        (
            "        summed = tensor.detach().double()\n"
            "        dist.all_reduce(summed, group=group)\n"
            "        tensor.data.copy_(summed / dist.get_world_size(group))\n"
        ),
        "the mean of all replicas",
    ),
    Mutant(
        "gathered",
        BROADCAST,
        ("communication",),
        "        dist.broadcast(tensor.detach(), group_src=0, group=group)\n",
        (
            "        parts = [torch.empty_like(tensor.detach()) for _ in "
            "range(dist.get_world_size(group))]\n"
            "        dist.all_gather(parts, tensor.detach(), group=group)\n"
            "        tensor.data.copy_(parts[0])\n"
        ),
        "everything from everybody",
    ),
    Mutant(
        "thawed",
        BROADCAST,
        ("in-place",),
        "        dist.broadcast(tensor.detach(), group_src=0, group=group)\n",
        (
            "        dist.broadcast(tensor.detach(), group_src=0, group=group)\n"
            "        if tensor.is_floating_point():\n"
            "            tensor.requires_grad_(True)\n"
        ),
        "frozen parameters are thawed",
    ),
    Mutant(
        "D1-sum",
        AVERAGE,
        (
            "gradients",
            "trained-weights",
        ),
        "        parameter.grad /= dist.get_world_size(group)\n",
        "",
        "the sum, not divided",
    ),
    Mutant(
        "D1-divided-by-the-world",
        AVERAGE,
        ("subgroup",),
        "dist.get_world_size(group)",
        "dist.get_world_size()",
        "divided by the number of all ranks",
    ),
    Mutant(
        "D14-none-skipped",
        AVERAGE,
        ("unused-parameter",),
        "            parameter.grad = torch.zeros_like(parameter)\n",
        "            continue\n",
        "a rank without a gradient does not take part",
    ),
    Mutant(
        "D20-nothing-sent",
        AVERAGE,
        (
            "gradients",
            "communication",
            "unused-parameter",
            "subgroup",
        ),
        (
            "        dist.all_reduce(parameter.grad, group=group)\n"
            "        parameter.grad /= dist.get_world_size(group)\n"
        ),
        "        pass\n",
        "gradients stay each rank's own",
    ),
    Mutant(
        "sum-everywhere",
        AVERAGE,
        ("subgroup",),
        "        dist.all_reduce(parameter.grad, group=group)\n",
        "        dist.all_reduce(parameter.grad)\n",
        "over all ranks of the job",
    ),
    Mutant(
        "weights-averaged",
        AVERAGE,
        ("gradients",),
        (
            "        dist.all_reduce(parameter.grad, group=group)\n"
            "        parameter.grad /= dist.get_world_size(group)\n"
        ),
        (
            "        dist.all_reduce(parameter.data, group=group)\n"
            "        parameter.data /= dist.get_world_size(group)\n"
        ),
        "weights instead of gradients",
    ),
    Mutant(
        "gathered-gradients",
        AVERAGE,
        ("communication",),
        (
            "        dist.all_reduce(parameter.grad, group=group)\n"
            "        parameter.grad /= dist.get_world_size(group)\n"
        ),
        (
            "        parts = [torch.empty_like(parameter.grad) for _ in "
            "range(dist.get_world_size(group))]\n"
            "        dist.all_gather(parts, parameter.grad, group=group)\n"
            "        parameter.grad = sum(parts) / len(parts)\n"
        ),
        "every gradient from everybody",
    ),
    Mutant(
        "D21-half-precision",
        AVERAGE,
        ("gradients",),
        "        dist.all_reduce(parameter.grad, group=group)\n",
        (
            "        half = parameter.grad.bfloat16()\n"
            "        dist.all_reduce(half, group=group)\n"
            "        parameter.grad.copy_(half)\n"
        ),
        "summed in bfloat16",
    ),
    Mutant(
        "twice",
        AVERAGE,
        (
            "gradients",
            "communication",
        ),
        "        dist.all_reduce(parameter.grad, group=group)\n",
        (
            "        dist.all_reduce(parameter.grad, group=group)\n"
            "        dist.all_reduce(parameter.grad, group=group)\n"
        ),
        "reduced twice",
    ),
]
