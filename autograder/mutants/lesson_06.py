"""Wrong answers to lesson 06: the usual mistakes, the lazy ways out, and answers that pretend.

Ids that start with T name a row of the course's list of known mistakes in tensor parallelism.
"""

from __future__ import annotations

from autograder.mutants import Mutant
from autograder.mutants.lesson_06_column import OF_COLUMN
from autograder.mutants.lesson_06_operators import OF_F, OF_G

ROW, MLP = "06.row-parallel-linear", "06.tensor-parallel-mlp"

OWN_COLUMNS = "linear.weight.detach().chunk(size, dim=1)[rank].clone()"
REFUSE_IN = (
    "        if linear.in_features % size:\n"
    '            raise ValueError(f"{linear.in_features} input features do not divide among {size} ranks")\n'
)
PARTIAL = "        partial = F.linear(x, self.weight)\n"
LEAVE = "        out = ReduceFromTensorParallel.apply(partial, self.group)\n"
KEEP_FULL = "        layer = cls(weight, bias, group)\n        layer.full = (linear,)\n        return layer\n"
ADD_BIAS = "        return out if self.bias is None else out + self.bias\n"

OF_ROW = [
    Mutant(
        "T2-row-without-g",
        ROW,
        ("forward-values", "communication", "bias-once"),
        LEAVE,
        "        out = partial\n",
        "partial sums leave the layer",
    ),
    Mutant(
        "T5-bias-before-reduce",
        ROW,
        ("bias-once",),
        (PARTIAL, ADD_BIAS),
        ("        partial = F.linear(x, self.weight, self.bias)\n", "        return out\n"),
        "the bias is added t times",
    ),
    Mutant(
        "T5-bias-divided",
        ROW,
        ("bias-once",),
        (PARTIAL, ADD_BIAS),
        (
            "        bias = None if self.bias is None else self.bias / dist.get_world_size(self.group)\n"
            "        partial = F.linear(x, self.weight, bias)\n",
            "        return out\n",
        ),
        "bias / t on every rank: the output is right, its gradient is a t-th",
    ),
    Mutant(
        "T5-bias-stored-divided",
        ROW,
        ("bias-once",),
        ("linear.bias.detach().clone()", PARTIAL, ADD_BIAS),
        (
            "linear.bias.detach() / size",
            "        partial = F.linear(x, self.weight, self.bias)\n",
            "        return out\n",
        ),
        "each rank stores bias / t: the sum of the copies learns t times too fast",
    ),
    Mutant(
        "row-bias-on-rank-0",
        ROW,
        ("bias-once",),
        (PARTIAL, ADD_BIAS),
        (
            "        first = dist.get_rank(self.group) == 0\n"
            "        partial = F.linear(x, self.weight, self.bias if first else None)\n",
            "        return out\n",
        ),
        "only rank 0's copy of the bias is used and learns",
    ),
    Mutant(
        "row-no-bias",
        ROW,
        ("bias-once",),
        ADD_BIAS,
        "        return out\n",
        "the bias is stored and not used",
    ),
    Mutant(
        "T7-row-cuts-outputs",
        ROW,
        ("forward-values", "stored-shards"),
        OWN_COLUMNS,
        OWN_COLUMNS.replace("dim=1", "dim=0"),
        "the weight is cut along the output features",
    ),
    Mutant(
        "T30-row-truncates",
        ROW,
        ("uneven-sizes",),
        (REFUSE_IN, OWN_COLUMNS),
        (
            "        part = linear.in_features // size\n",
            "linear.weight.detach()[:, rank * part : (rank + 1) * part].clone()",
        ),
        "in_features // t: the last inputs are lost",
    ),
    Mutant("row-uneven-blocks", ROW, ("uneven-sizes",), REFUSE_IN, "", "blocks of different sizes"),
    Mutant(
        "row-reduces-gradients",
        ROW,
        ("input-gradients", "communication"),
        PARTIAL,
        "        x = CopyToTensorParallel.apply(x, self.group)\n" + PARTIAL,
        "f in front as well: gradients of different slices are added",
    ),
    Mutant(
        "row-gathers-its-input",
        ROW,
        ("communication", "own-shard-only", "stored-shards"),
        (
            "        return cls(weight, bias, group)\n",
            PARTIAL + LEAVE,
        ),
        (
            KEEP_FULL,
            "        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(self.group))]\n"
            "        dist.all_gather(parts, x.detach().contiguous(), group=self.group)\n"
            "        parts[dist.get_rank(self.group)] = x\n"
            "        out = F.linear(torch.cat(parts, dim=-1), self.full[0].weight)\n",
        ),
        "the input is gathered and the full layer computes the product on every rank",
    ),
    Mutant(
        "row-pretends",
        ROW,
        ("own-shard-only", "stored-shards", "forward-values"),
        ("        return cls(weight, bias, group)\n", PARTIAL + LEAVE),
        (
            KEEP_FULL,
            "        out = F.linear(x, self.full[0].weight[:, : x.shape[-1]])\n"
            "        dist.all_reduce(torch.zeros_like(out), group=self.group)\n",
        ),
        "an all-reduce of zeros beside a product with the first block",
    ),
    Mutant(
        "row-keeps-a-view",
        ROW,
        ("stored-shards",),
        OWN_COLUMNS,
        OWN_COLUMNS.removesuffix(".clone()"),
        "the block is a view that keeps the whole weight in memory",
    ),
    Mutant(
        "row-keeps-everything",
        ROW,
        ("stored-shards",),
        "        return cls(weight, bias, group)\n",
        "        layer = cls(weight, bias, group)\n        layer.full = [linear]\n        return layer\n",
        "the full layer is kept in a list, where no parameter count finds it",
    ),
    Mutant(
        "row-on-the-world",
        ROW,
        ("subgroup",),
        "ReduceFromTensorParallel.apply(partial, self.group)",
        "ReduceFromTensorParallel.apply(partial, dist.group.WORLD)",
        "the sum is over every rank of the job",
    ),
    Mutant(
        "row-wrong-block",
        ROW,
        ("forward-values", "own-shard-only"),
        "        weight = linear.weight",
        "        rank = size - 1 - rank\n        weight = linear.weight",
        "rank r takes the block of rank t-1-r",
    ),
    Mutant(
        "row-detached",
        ROW,
        ("parameter-gradients", "input-gradients"),
        "apply(partial, self.group)",
        "apply(partial.detach(), self.group)",
        "the graph is cut in front of g",
    ),
    Mutant(
        "row-stale-weight",
        ROW,
        ("trained-weights",),
        PARTIAL,
        "        if not hasattr(self, 'first'):\n"
        "            self.first = self.weight.detach().clone()\n"
        "        partial = F.linear(x, self.weight - self.weight.detach() + self.first)\n",
        "the weight learns, but the layer goes on computing with the first one",
    ),
    Mutant(
        "row-mean",
        ROW,
        ("forward-values",),
        LEAVE,
        LEAVE + "        out = out / dist.get_world_size(self.group)\n",
        "partial sums averaged",
    ),
    Mutant(
        "row-plain-all-reduce",
        ROW,
        ("input-gradients",),
        LEAVE,
        "        from torch.distributed.nn.functional import all_reduce\n"
        "        out = all_reduce(partial, group=self.group)\n",
        "torch's differentiable all-reduce, which reduces in backward as well",
    ),
]

BUILD_UP = "        up = ColumnParallelLinear.from_linear(mlp.up, group)\n"
FORWARD = "        return self.down(F.gelu(self.up(x)))\n"
KEEP = "        layer = cls(up, down)\n        layer.mlp = (mlp,)\n        return layer\n"

OF_MLP = [
    Mutant(
        "mlp-gathers-between",
        MLP,
        ("communication",),
        (BUILD_UP, FORWARD),
        (
            "        up = ColumnParallelLinear.from_linear(mlp.up, group, gather_output=True)\n",
            "        rank, size = dist.get_rank(self.up.group), dist.get_world_size(self.up.group)\n"
            "        inner = F.gelu(self.up(x))\n"
            "        return self.down(inner.chunk(size, dim=-1)[rank])\n",
        ),
        "the inner features are gathered, only to be cut again",
    ),
    Mutant(
        "T6-gelu-on-partial-sums",
        MLP,
        ("forward-values",),
        FORWARD,
        "        partial = F.gelu(F.linear(self.up(x), self.down.weight))\n"
        "        return ReduceFromTensorParallel.apply(partial, self.down.group) + self.down.bias\n",
        "GeLU meets partial sums",
    ),
    Mutant(
        "mlp-no-gelu",
        MLP,
        ("forward-values",),
        FORWARD,
        "        return self.down(self.up(x))\n",
        "no GeLU at all",
    ),
    Mutant(
        "mlp-tanh-gelu",
        MLP,
        ("forward-values",),
        "F.gelu(self.up(x))",
        'F.gelu(self.up(x), approximate="tanh")',
        "the approximate GeLU",
    ),
    Mutant(
        "mlp-f-twice",
        MLP,
        ("input-gradients", "communication"),
        FORWARD,
        "        x = CopyToTensorParallel.apply(x, self.up.group)\n" + FORWARD,
        "f in front of a layer that has its own: t times the gradient",
    ),
    Mutant(
        "mlp-pretends",
        MLP,
        ("own-shard-only", "stored-shards"),
        ("        return cls(up, down)\n", FORWARD),
        (
            KEEP,
            "        out = self.mlp[0](x)\n"
            "        dist.all_reduce(torch.zeros_like(out), group=self.up.group)\n"
            "        return out\n",
        ),
        "the unsharded MLP runs on every rank, with an all-reduce of zeros for show",
    ),
    Mutant(
        "mlp-detached",
        MLP,
        ("input-gradients", "parameter-gradients", "trained-weights"),
        "F.gelu(self.up(x))",
        "F.gelu(self.up(x).detach())",
        "no gradient reaches the first layer",
    ),
    Mutant(
        "mlp-keeps-everything",
        MLP,
        ("stored-shards",),
        "        return cls(up, down)\n",
        KEEP,
        "the unsharded MLP stays in memory",
    ),
    Mutant(
        "mlp-on-the-world",
        MLP,
        ("subgroup",),
        "from_linear(mlp.down, group)",
        "from_linear(mlp.down, dist.group.WORLD)",
        "the second layer is cut over every rank of the job",
    ),
    Mutant(
        "mlp-no-bias",
        MLP,
        ("forward-values",),
        FORWARD,
        "        return self.down(F.gelu(self.up(x))) - self.down.bias\n",
        "the last bias is lost",
    ),
    Mutant(
        "mlp-adds-the-input",
        MLP,
        ("forward-values",),
        FORWARD,
        "        return x + self.down(F.gelu(self.up(x)))\n",
        "the residual is the layer's business, not the MLP's",
    ),
]

MUTANTS = [*OF_F, *OF_G, *OF_COLUMN, *OF_ROW, *OF_MLP]
