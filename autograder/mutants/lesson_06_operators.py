"""Wrong answers to f and g of lesson 06."""

from __future__ import annotations

from autograder.mutants import Mutant

F, G = "06.copy-to-tensor-parallel", "06.reduce-from-tensor-parallel"

COPY_GRADIENT = "        total = grad_output.clone(memory_format=torch.contiguous_format)\n"
REDUCE_GRADIENT = "        dist.all_reduce(total, group=ctx.group)\n"
COPY_X = "        total = x.clone(memory_format=torch.contiguous_format)\n"
REDUCE_X = "        dist.all_reduce(total, group=group)\n"
PASS_GRADIENT = "        return grad_output, None\n"

OF_F = [
    Mutant(
        "T1-no-reduce-in-backward",
        F,
        ("input-gradients", "communication", "subgroup"),
        REDUCE_GRADIENT,
        "",
        "f sends nothing: each rank keeps the gradient through its own columns",
    ),
    Mutant(
        "T4-reduces-in-forward",
        F,
        ("forward-values", "communication"),
        "        return x\n",
        "        x = x.clone()\n        dist.all_reduce(x, group=group)\n        return x\n",
        "f sums the replicated input: t times too large",
    ),
    Mutant(
        "f-gradient-in-place",
        F,
        ("callers-tensors",),
        COPY_GRADIENT,
        "        total = grad_output.contiguous()\n",
        "the caller's gradient is overwritten with the sum",
    ),
    Mutant(
        "f-flattens",
        F,
        ("any-layout",),
        COPY_GRADIENT,
        "        total = grad_output.view(-1).clone().view(grad_output.shape)\n",
        "view(-1) works on contiguous gradients only",
    ),
    Mutant(
        "f-on-the-world",
        F,
        ("subgroup",),
        REDUCE_GRADIENT,
        "        dist.all_reduce(total)\n",
        "group forgotten",
    ),
    Mutant(
        "f-from-the-next-lesson",
        F,
        ("input-gradients", "communication", "any-layout"),
        COPY_GRADIENT + REDUCE_GRADIENT,
        "        from labkit.tensor_parallel import sum_over_ranks\n"
        "        total = sum_over_ranks(grad_output, ctx.group)\n",
        "the library's sum, which lesson 07 is handed",
    ),
    Mutant(
        "f-mean",
        F,
        ("input-gradients",),
        "        return total, None\n",
        "        return total / dist.get_world_size(ctx.group), None\n",
        "gradients averaged, as data parallelism would",
    ),
    Mutant(
        "f-no-gradient",
        F,
        ("input-gradients",),
        "        return total, None\n",
        "        return None, None\n",
        "the gradient is reduced and then dropped",
    ),
    Mutant(
        "f-gathers-and-adds",
        F,
        ("communication",),
        REDUCE_GRADIENT,
        "        parts = [torch.empty_like(total) for _ in range(dist.get_world_size(ctx.group))]\n"
        "        dist.all_gather(parts, total, group=ctx.group)\n"
        "        total = torch.stack(parts).sum(0)\n",
        "t gradients are sent to every rank to be added there",
    ),
    Mutant(
        "f-float32",
        F,
        ("input-gradients", "communication"),
        REDUCE_GRADIENT,
        "        total = total.float()\n" + REDUCE_GRADIENT + "        total = total.to(grad_output.dtype)\n",
        "the sum goes through float32",
    ),
    Mutant(
        "f-reduces-twice",
        F,
        ("input-gradients", "communication"),
        REDUCE_GRADIENT,
        REDUCE_GRADIENT * 2,
        "the gradient is summed twice",
    ),
]

OF_G = [
    Mutant(
        "T2-no-reduce-in-forward",
        G,
        ("forward-values", "communication", "subgroup"),
        REDUCE_X,
        "",
        "g sends nothing: each rank goes on with its partial sum",
    ),
    Mutant(
        "g-reduces-in-backward-too",
        G,
        ("input-gradients", "communication"),
        PASS_GRADIENT,
        "        total = grad_output.clone(memory_format=torch.contiguous_format)\n"
        "        dist.all_reduce(total)\n"
        "        return total, None\n",
        "the backward of torch.distributed.nn.functional.all_reduce: gradients t times too large",
    ),
    Mutant(
        "g-in-place",
        G,
        ("callers-tensors",),
        COPY_X,
        "        total = x\n",
        "the caller's partial sums are lost",
    ),
    Mutant(
        "g-on-the-world", G, ("subgroup",), REDUCE_X, "        dist.all_reduce(total)\n", "group forgotten"
    ),
    Mutant(
        "g-mean",
        G,
        ("forward-values",),
        "        return total\n",
        "        return total / dist.get_world_size(group)\n",
        "partial sums averaged",
    ),
    Mutant(
        "g-pretends",
        G,
        ("forward-values",),
        REDUCE_X,
        "        dist.all_reduce(torch.zeros_like(total), group=group)\n",
        "an all-reduce of zeros, so that the traffic looks right",
    ),
    Mutant(
        "g-largest",
        G,
        ("forward-values",),
        REDUCE_X,
        "        dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)\n",
        "the largest instead of the sum",
    ),
    Mutant(
        "g-gathers-and-adds",
        G,
        ("communication",),
        REDUCE_X,
        "        parts = [torch.empty_like(total) for _ in range(dist.get_world_size(group))]\n"
        "        dist.all_gather(parts, total, group=group)\n"
        "        total = torch.stack(parts).sum(0)\n",
        "t tensors are sent to every rank to be added there",
    ),
    Mutant(
        "g-no-gradient", G, ("input-gradients",), PASS_GRADIENT, "        return None, None\n", "None for x"
    ),
    Mutant(
        "g-float32",
        G,
        ("forward-values", "communication"),
        REDUCE_X,
        "        total = total.float()\n" + REDUCE_X + "        total = total.to(x.dtype)\n",
        "the sum goes through float32",
    ),
    Mutant(
        "g-flattens",
        G,
        ("any-layout",),
        COPY_X,
        "        total = x.view(-1).clone().view(x.shape)\n",
        "view(-1) works on contiguous tensors only",
    ),
]
