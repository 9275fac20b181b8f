"""Wrong answers to the column-parallel layer of lesson 06."""

from __future__ import annotations

from autograder.mutants import Mutant

COLUMN = "06.column-parallel-linear"

OWN_ROWS = "linear.weight.detach().chunk(size, dim=0)[rank].clone()"
REFUSE_OUT = (
    "        if linear.out_features % size:\n"
    '            raise ValueError(f"{linear.out_features} output features do not '
    'divide among {size} ranks")\n'
)
COLUMN_FORWARD = "        out = F.linear(x, self.weight, self.bias)\n"
ENTER = "        x = CopyToTensorParallel.apply(x, self.group)\n"
OWN_SLICE = "        return grad_output.chunk(size, dim=-1)[rank], None\n"

OF_COLUMN = [
    Mutant(
        "T7-column-cuts-inputs",
        COLUMN,
        ("forward-values", "stored-shards"),
        OWN_ROWS,
        OWN_ROWS.replace("dim=0", "dim=1"),
        "the weight is cut along the input features",
    ),
    Mutant(
        "T30-column-truncates",
        COLUMN,
        ("uneven-sizes",),
        (REFUSE_OUT, OWN_ROWS, "linear.bias.detach().chunk(size, dim=0)[rank].clone()"),
        (
            "        part = linear.out_features // size\n"
            "        own = slice(rank * part, (rank + 1) * part)\n",
            "linear.weight.detach()[own].clone()",
            "linear.bias.detach()[own].clone()",
        ),
        "out_features // t: the last columns are lost",
    ),
    Mutant("column-uneven-blocks", COLUMN, ("uneven-sizes",), REFUSE_OUT, "", "blocks of different sizes"),
    Mutant(
        "column-refuses-on-rank-0",
        COLUMN,
        ("uneven-sizes",),
        "        if linear.out_features % size:\n",
        "        if rank == 0 and linear.out_features % size:\n",
        "one rank raises, the others go on and will wait for it",
    ),
    Mutant(
        "column-asserts",
        COLUMN,
        ("uneven-sizes",),
        REFUSE_OUT,
        "        assert linear.out_features % size == 0\n",
        "a bare assert: no ValueError, no sizes",
    ),
    Mutant(
        "T31-joins-along-dim-0",
        COLUMN,
        ("gather-output",),
        "torch.cat(parts, dim=-1)",
        "torch.cat(parts, dim=0)",
        "blocks are stacked as rows",
    ),
    Mutant(
        "T31-joins-in-reverse",
        COLUMN,
        ("gather-output",),
        "torch.cat(parts, dim=-1)",
        "torch.cat(parts[::-1], dim=-1)",
        "blocks are joined in the wrong order of ranks",
    ),
    Mutant(
        "gather-sums-in-backward",
        COLUMN,
        ("gather-output",),
        OWN_SLICE,
        "        total = grad_output.contiguous().clone()\n"
        "        dist.all_reduce(total, group=ctx.group)\n"
        "        return total.chunk(size, dim=-1)[rank], None\n",
        "the backward adds what all ranks have in common: t times too large",
    ),
    Mutant(
        "gather-wrong-slice",
        COLUMN,
        ("gather-output",),
        OWN_SLICE,
        "        return grad_output.chunk(size, dim=-1)[size - 1 - rank], None\n",
        "the gradient of another rank's slice",
    ),
    Mutant(
        "gather-on-the-world",
        COLUMN,
        ("subgroup",),
        (
            "range(dist.get_world_size(group))]\n        dist.all_gather(parts, x, group=group)",
            "dist.get_rank(ctx.group), dist.get_world_size(ctx.group)",
        ),
        (
            "range(dist.get_world_size())]\n        dist.all_gather(parts, x)",
            "dist.get_rank(), dist.get_world_size()",
        ),
        "the blocks of every rank of the job are joined",
    ),
    Mutant(
        "gather-pretends",
        COLUMN,
        ("gather-output", "stored-shards"),
        (
            "        return cls(weight, bias, group, gather_output)\n",
            "        return GatherFromTensorParallel.apply(out, self.group) if self.gather_output else out\n",
        ),
        (
            "        layer = cls(weight, bias, group, gather_output)\n        layer.full = (linear,)\n"
            "        return layer\n",
            "        if self.gather_output:\n            GatherFromTensorParallel.apply(out, self.group)\n"
            "            return self.full[0](x)\n        return out\n",
        ),
        "the full layer is kept and computes the whole output, beside an all-gather for show",
    ),
    Mutant(
        "T1-column-without-f",
        COLUMN,
        ("input-gradients", "communication"),
        ENTER,
        "",
        "x enters the cut region without f",
    ),
    Mutant(
        "column-f-on-the-output",
        COLUMN,
        ("parameter-gradients",),
        (ENTER, COLUMN_FORWARD),
        ("", COLUMN_FORWARD + "        out = CopyToTensorParallel.apply(out, self.group)\n"),
        "f behind the product: gradients of different outputs are added",
    ),
    Mutant(
        "column-keeps-a-view",
        COLUMN,
        ("stored-shards",),
        OWN_ROWS,
        OWN_ROWS.removesuffix(".clone()"),
        "the block is a view that keeps the whole weight in memory",
    ),
    Mutant(
        "column-keeps-a-contiguous-view",
        COLUMN,
        ("stored-shards",),
        OWN_ROWS,
        OWN_ROWS.replace(".clone()", ".contiguous()"),
        "rows of a matrix are contiguous already: no copy is made",
    ),
    Mutant(
        "column-keeps-everything",
        COLUMN,
        ("stored-shards",),
        "        return cls(weight, bias, group, gather_output)\n",
        "        layer = cls(weight, bias, group, gather_output)\n"
        "        layer.full = linear\n"
        "        return layer\n",
        "the full layer is kept beside the block",
    ),
    Mutant(
        "column-changes-the-full-layer",
        COLUMN,
        ("stored-shards",),
        "        return cls(weight, bias, group, gather_output)\n",
        "        linear.weight.data.zero_()\n        return cls(weight, bias, group, gather_output)\n",
        "the caller's layer is emptied",
    ),
    Mutant(
        "column-reversed-blocks",
        COLUMN,
        ("forward-values", "own-shard-only"),
        "        weight = linear.weight",
        "        rank = size - 1 - rank\n        weight = linear.weight",
        "rank r takes the block of rank t-1-r",
    ),
    Mutant(
        "column-interleaved",
        COLUMN,
        ("forward-values",),
        (OWN_ROWS, "linear.bias.detach().chunk(size, dim=0)[rank].clone()"),
        ("linear.weight.detach()[rank::size].clone()", "linear.bias.detach()[rank::size].clone()"),
        "every t-th row instead of a block of rows",
    ),
    Mutant(
        "column-world-rank",
        COLUMN,
        ("subgroup",),
        "        rank, size = dist.get_rank(group), dist.get_world_size(group)\n        if",
        "        size = dist.get_world_size(group)\n        rank = dist.get_rank() % size\n        if",
        "the rank's number in the job picks the block",
    ),
    Mutant(
        "column-no-bias",
        COLUMN,
        ("forward-values", "parameter-gradients"),
        "F.linear(x, self.weight, self.bias)",
        "F.linear(x, self.weight)",
        "the bias is stored and not used",
    ),
    Mutant(
        "column-not-parameters",
        COLUMN,
        ("parameter-gradients", "trained-weights", "stored-shards"),
        "        self.weight = nn.Parameter(weight)\n",
        "        self.weight = weight\n",
        "a plain tensor that no optimizer sees",
    ),
    Mutant(
        "column-detached",
        COLUMN,
        ("parameter-gradients", "trained-weights"),
        "F.linear(x, self.weight, self.bias)",
        "F.linear(x, self.weight.detach(), self.bias)",
        "the weight gets no gradient",
    ),
    Mutant(
        "column-always-gathers",
        COLUMN,
        ("forward-values", "communication"),
        "self.group) if self.gather_output else out",
        "self.group)",
        "the output is gathered though nobody asked",
    ),
    Mutant(
        "column-float32",
        COLUMN,
        ("forward-values",),
        COLUMN_FORWARD,
        "        out = F.linear(x.float(), self.weight.float(), self.bias.float()).to(x.dtype)\n",
        "the product is computed in float32",
    ),
]
