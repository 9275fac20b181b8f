"""Wrong answers to lesson 03: shares and buckets. Ids with D or P and a number name a row of the list of
known mistakes.
"""

from __future__ import annotations

from autograder.mutants import Mutant

INDICES = "03.shard-indices"
BUCKETS = "03.assign-buckets"

OF_PLANS = [
    Mutant(
        "remainder-dropped",
        INDICES,
        ("equal-shares",),
        "    each = -(-num_samples // world_size)\n",
        "    each = num_samples // world_size\n",
        "what does not divide is left out",
    ),
    Mutant(
        "no-filling-up",
        INDICES,
        ("equal-shares",),
        "    return [order[(rank + i * world_size) % num_samples] for i in range(each)]\n",
        "    return order[rank::world_size]\n",
        "shares of different lengths",
    ),
    Mutant(
        "all-on-every-rank",
        INDICES,
        ("equal-shares",),
        "    return [order[(rank + i * world_size) % num_samples] for i in range(each)]\n",
        "    return order\n",
        "every rank reads everything",
    ),
    Mutant(
        "own-shuffle",
        INDICES,
        ("every-sample",),
        "manual_seed(seed * 1_000_003 + epoch)",
        "manual_seed(seed * 1_000_003 + epoch + rank * 7)",
        "each rank has its own order, so shares overlap",
    ),
    Mutant(
        "epoch-ignored",
        INDICES,
        ("shuffled",),
        "manual_seed(seed * 1_000_003 + epoch)",
        "manual_seed(seed)",
        "the same order every epoch",
    ),
    Mutant(
        "seed-ignored",
        INDICES,
        ("shuffled",),
        "manual_seed(seed * 1_000_003 + epoch)",
        "manual_seed(epoch)",
        "the same order for every seed",
    ),
    Mutant(
        "not-shuffled",
        INDICES,
        ("shuffled",),
        "    order = torch.randperm(num_samples, generator=generator).tolist()\n",
        "    order = list(range(num_samples))\n",
        "no shuffling",
    ),
    Mutant(
        "shuffled-within-shares",
        INDICES,
        ("shuffled",),
        (
            "    order = torch.randperm(num_samples, generator=generator).tolist()\n",
            "    return [order[(rank + i * world_size) % num_samples] for i in range(each)]\n",
        ),
        (
            "    order = list(range(num_samples))\n",
            (
                "    start = (rank * each + epoch + seed) % max(num_samples, 1)\n"
                "    return [order[(start + i) % num_samples] for i in range(each)]\n"
            ),
        ),
        "blocks in order, moved along",
    ),
    Mutant(
        "global-generator",
        INDICES,
        ("reproducible",),
        (
            "    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)\n",
            "    order = torch.randperm(num_samples, generator=generator).tolist()\n",
        ),
        (
            "    torch.manual_seed(seed * 1_000_003 + epoch)\n",
            "    order = torch.randperm(num_samples).tolist()\n",
        ),
        "torch's own generator is seeded anew",
    ),
    Mutant(
        "rank-not-checked",
        INDICES,
        ("wrong-rank",),
        "    if not 0 <= rank < world_size:\n",
        "    if rank < 0:\n",
        "a rank beyond the world gets samples",
    ),
    Mutant(
        "D18-elements",
        BUCKETS,
        ("bucket-bytes",),
        "parameter.numel() * parameter.element_size()",
        "parameter.numel()",
        "elements taken for bytes",
    ),
    Mutant(
        "forward-order",
        BUCKETS,
        ("reverse-order",),
        "for index in reversed(range(len(parameters))):",
        "for index in range(len(parameters)):",
        "the first parameter first",
    ),
    Mutant(
        "one-each",
        BUCKETS,
        ("bucket-bytes",),
        "if not buckets or used + size > bucket_bytes or parameter.dtype != dtype:",
        "if True:",
        "a bucket for every parameter",
    ),
    Mutant(
        "one-for-all",
        BUCKETS,
        (
            "bucket-bytes",
            "one-dtype",
        ),
        "if not buckets or used + size > bucket_bytes or parameter.dtype != dtype:",
        "if not buckets:",
        "one bucket for everything",
    ),
    Mutant(
        "closed-after",
        BUCKETS,
        ("bucket-bytes",),
        "used + size > bucket_bytes",
        "used > bucket_bytes",
        "a bucket is closed only after it has overflowed",
    ),
    Mutant(
        "full-is-too-full",
        BUCKETS,
        ("bucket-bytes",),
        "used + size > bucket_bytes",
        "used + size >= bucket_bytes",
        "exactly full does not count as fitting",
    ),
    Mutant(
        "dtypes-mixed",
        BUCKETS,
        ("one-dtype",),
        " or parameter.dtype != dtype",
        "",
        "one bucket with two dtypes",
    ),
    Mutant(
        "frozen-too",
        BUCKETS,
        ("every-parameter",),
        ("        if not parameter.requires_grad:\n            continue\n"),
        "",
        "frozen parameters wait for gradients that never come",
    ),
]
