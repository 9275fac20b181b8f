"""Wrong answers to lesson 03. Ids with D or P and a number name a row of the list of known mistakes."""

from __future__ import annotations

from autograder.mutants import Mutant
from autograder.mutants.lesson_03_overlap import OF_OVERLAP
from autograder.mutants.lesson_03_plans import OF_PLANS
from autograder.mutants.lesson_03_replicas import OF_REPLICAS

TOKENS = "03.token-weighted-loss"
ACCUMULATE = "03.accumulate-gradients"

OF_LOSSES = [
    Mutant(
        "mean-of-means",
        TOKENS,
        (
            "gradients",
            "loss-value",
            "communication",
        ),
        (
            "    total = torch.tensor(float(num_tokens), device=loss_sum.device)\n"
            "    dist.all_reduce(total, group=group)\n"
            "    return loss_sum * dist.get_world_size(group) / total.clamp(min=1).item()\n"
        ),
        "    return loss_sum / max(num_tokens, 1)\n",
        "each rank's own mean",
    ),
    Mutant(
        "averaged-twice",
        TOKENS,
        (
            "gradients",
            "loss-value",
        ),
        "loss_sum * dist.get_world_size(group) / total",
        "loss_sum / total",
        "the world size is divided by twice",
    ),
    Mutant(
        "loss-sent-too",
        TOKENS,
        ("communication",),
        "    dist.all_reduce(total, group=group)\n",
        (
            "    dist.all_reduce(total, group=group)\n"
            "    dist.all_reduce(loss_sum.detach().clone(), group=group)\n"
        ),
        "two numbers are sent",
    ),
    Mutant(
        "not-a-number",
        TOKENS,
        ("no-tokens",),
        "total.clamp(min=1).item()",
        "total.item()",
        "0 / 0 where nobody has tokens",
    ),
    Mutant(
        "skips-when-empty",
        TOKENS,
        ("no-tokens",),
        "    total = torch.tensor(",
        ("    if num_tokens == 0:\n        return loss_sum * 0\n    total = torch.tensor("),
        "a rank without tokens does not take part",
    ),
    Mutant(
        "world-tokens",
        TOKENS,
        ("subgroup",),
        "dist.all_reduce(total, group=group)",
        "dist.all_reduce(total)",
        "tokens of all ranks of the job",
    ),
    Mutant(
        "D7-not-divided",
        ACCUMULATE,
        ("gradients",),
        "loss_function(model(x), target) * (len(x) / rows)",
        "loss_function(model(x), target)",
        "the sum of the means",
    ),
    Mutant(
        "divided-by-count",
        ACCUMULATE,
        ("uneven-micro-batches",),
        "* (len(x) / rows)",
        "/ len(micro_batches)",
        "every micro-batch counts the same",
    ),
    Mutant(
        "sent-each-time",
        ACCUMULATE,
        ("communication",),
        "    with model.no_sync():\n        for x, target",
        "    if True:\n        for x, target",
        "gradients travel for every micro-batch",
    ),
    Mutant(
        "D9-never-sent",
        ACCUMULATE,
        (
            "gradients",
            "communication",
        ),
        "    return total + add(*micro_batches[-1])\n",
        ("    with model.no_sync():\n        return total + add(*micro_batches[-1])\n"),
        "the last one is not sent either",
    ),
    Mutant(
        "P3-zeroed-inside",
        ACCUMULATE,
        ("gradients",),
        "        loss.backward()\n",
        ("        model.zero_grad()\n        loss.backward()\n"),
        "only the last micro-batch counts",
    ),
    Mutant(
        "last-loss-only",
        ACCUMULATE,
        ("loss",),
        "    return total + add(",
        "    return add(",
        "the loss of the last micro-batch",
    ),
    Mutant(
        "first-left-out",
        ACCUMULATE,
        (
            "gradients",
            "loss",
        ),
        "in micro_batches[:-1]:",
        "in micro_batches[1:-1]:",
        "the first micro-batch is left out",
    ),
]

MUTANTS = [*OF_PLANS, *OF_REPLICAS, *OF_OVERLAP, *OF_LOSSES]
