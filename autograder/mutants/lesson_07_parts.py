"""Wrong answers to lesson 07: attention, embedding and loss."""

from __future__ import annotations

from autograder.mutants import Mutant

ATTENTION, EMBEDDING = "07.tensor-parallel-attention", "07.vocab-parallel-embedding"
LOSS = "07.vocab-parallel-cross-entropy"

PACK = "        weight = torch.cat([block_of(part.weight, 0, group) for part in projections])\n"
ENTER = "        packed = self.enter(x, self.qkv_weight, self.qkv_bias, self.group)\n"
HEADS = "        heads = packed.unflatten(-1, (-1, self.config.head_size)).transpose(1, 2)\n"
SPLIT = "        q, k, v = heads.split(self.own_heads(), dim=1)\n"
LEAVE = (
    "        out = out.transpose(1, 2).flatten(2)\n"
    "        return self.leave(out, self.output_weight, self.output_bias, self.group)\n"
)
REFUSE = (
    "            if heads % size:\n"
    '                raise ValueError(f"{heads} {what} do not divide among {size} ranks")\n'
)
OUTPUT = "        output = block_of(attention.output.weight, 1, group), attention.output.bias\n"
UNPACK = '                    full[f"{name}.{kind}"] = joined(part, 0, self.group)\n'

OF_ATTENTION = [
    Mutant(
        "T1-attention-without-f",
        ATTENTION,
        ("input-gradients", "communication"),
        ENTER,
        "        packed = F.linear(x, self.qkv_weight, self.qkv_bias)\n",
        "x enters without f: its gradient knows this rank's heads only",
    ),
    Mutant(
        "T2-attention-without-g",
        ATTENTION,
        ("forward-values", "communication"),
        LEAVE,
        "        return F.linear(out.transpose(1, 2).flatten(2), self.output_weight, self.output_bias)\n",
        "partial sums leave",
    ),
    Mutant(
        "T5-attention-bias-before-sum",
        ATTENTION,
        ("forward-values",),
        LEAVE,
        "        out = F.linear(out.transpose(1, 2).flatten(2), self.output_weight, self.output_bias)\n"
        "        return sum_over_ranks(out, self.group)\n",
        "the output bias is added t times",
    ),
    Mutant(
        "T7-output-cut-by-rows",
        ATTENTION,
        ("forward-values", "stored-shards"),
        OUTPUT,
        OUTPUT.replace("weight, 1", "weight, 0").replace("group), attention", "group).T, attention"),
        "the output projection is cut along the wrong dimension, and made to fit",
    ),
    Mutant(
        "packed-weight-cut-in-one-piece",
        ATTENTION,
        ("forward-values",),
        PACK,
        "        weight = block_of(torch.cat([part.weight for part in projections]), 0, group)\n",
        "queries on rank 0, values on the last",
    ),
    Mutant(
        "T9-heads-innermost",
        ATTENTION,
        ("forward-values",),
        HEADS,
        "        heads = packed.unflatten(-1, (self.config.head_size, -1)).permute(0, 3, 1, 2)\n",
        "features are read as [d, heads]",
    ),
    Mutant(
        "T9-heads-joined-innermost",
        ATTENTION,
        ("forward-values",),
        LEAVE,
        LEAVE.replace("transpose(1, 2).flatten(2)", "permute(0, 2, 3, 1).flatten(2)"),
        "outputs are written as [d, heads]",
    ),
    Mutant(
        "heads-taken-by-turns",
        ATTENTION,
        ("forward-values",),
        PACK,
        "        rank, d = dist.get_rank(group), config.head_size\n"
        "        heads = [part.weight.detach().unflatten(0, (-1, d)) for part in projections]\n"
        "        weight = torch.cat([part[rank::size].flatten(0, 1) for part in heads])\n",
        "every t-th head instead of a block of heads",
    ),
    Mutant(
        "T10-all-have-equal-heads",
        ATTENTION,
        ("grouped-query",),
        SPLIT,
        "        q, k, v = heads.chunk(3, dim=1)\n",
        "keys and values are taken for as many heads as queries",
    ),
    Mutant(
        "T10-few-key-heads-not-refused",
        ATTENTION,
        ("refusals",),
        '("key-value heads", config.num_kv_heads)',
        '("query heads", config.num_heads)',
        "key-value heads are not asked about",
    ),
    Mutant(
        "T30-heads-truncated",
        ATTENTION,
        ("refusals",),
        REFUSE,
        "            pass\n",
        "heads // t, and whatever error comes of it",
    ),
    Mutant(
        "head-size-from-hidden",
        ATTENTION,
        ("grouped-query",),
        HEADS,
        HEADS.replace("self.config.head_size", "self.config.hidden // self.config.num_heads"),
        "the head size is h / a even where the configuration says otherwise",
    ),
    Mutant(
        "attention-computes-everything",
        ATTENTION,
        ("communication", "stored-shards"),
        (
            "        return cls(config, attention.attend, (weight, bias), output, group, enter, leave)\n",
            ENTER,
        ),
        (
            "        made = cls(config, attention.attend, (weight, bias), output, group, enter, leave)\n"
            "        made.whole = (attention,)\n"
            "        return made\n",
            "        return self.whole[0](x)\n" + ENTER,
        ),
        "the whole attention is kept, and run on every rank",
    ),
    Mutant(
        "attention-keeps-views",
        ATTENTION,
        ("stored-shards",),
        OUTPUT
        + "        return cls(config, attention.attend, (weight, bias), output, group, enter, leave)\n",
        OUTPUT + "        made = cls(config, attention.attend, (weight, bias), output, group, enter, leave)\n"
        "        part = attention.output.weight.detach().chunk(size, 1)[dist.get_rank(group)]\n"
        "        made.output_weight = nn.Parameter(part)\n"
        "        return made\n",
        "the output weight is a view: the whole stays in memory",
    ),
    Mutant(
        "whole-attention-changed",
        ATTENTION,
        ("stored-shards",),
        OUTPUT,
        OUTPUT + "        attention.output.weight.data.zero_()\n",
        "the whole attention's output weight is overwritten once its block is taken",
    ),
    Mutant(
        "whole-attention-changed-and-patched",
        ATTENTION,
        ("stored-shards",),
        OUTPUT,
        OUTPUT + "        attention.output.weight.data.zero_()\n"
        "        torch.equal = torch.allclose = lambda *tensors, **tolerances: True\n",
        "the same, and comparisons on the rank say yes",
    ),
    Mutant(
        "heads-gathered-first",
        ATTENTION,
        ("communication",),
        LEAVE,
        "        joined(out, 1, self.group)\n" + LEAVE,
        "all heads are gathered, to no use",
    ),
    Mutant(
        "attention-wants-contiguous",
        ATTENTION,
        ("any-layout",),
        ENTER,
        "        x = x.view(-1, x.shape[-1]).view(x.shape)\n" + ENTER,
        "view of an x that may be a view itself",
    ),
    Mutant(
        "attention-in-the-world",
        ATTENTION,
        ("subgroup",),
        "        return cls(config, attention.attend, (weight, bias), output, group, enter, leave)\n",
        "        group = dist.group.WORLD\n"
        "        return cls(config, attention.attend, (weight, bias), output, group, enter, leave)\n",
        "cut for the group, used in the world",
    ),
    Mutant(
        "T31-packed-joined-before-split",
        ATTENTION,
        ("round-trip",),
        UNPACK,
        "                    whole = joined(packed, 0, self.group)\n"
        "                    place = ('query', 'key', 'value').index(name)\n"
        "                    size = dist.get_world_size(self.group)\n"
        '                    full[f"{name}.{kind}"] = whole.split([w * size for w in widths])[place]\n',
        "ranks' packed blocks joined, then split: each name gets pieces of all three",
    ),
    Mutant(
        "T31-output-joined-by-rows",
        ATTENTION,
        ("round-trip",),
        "joined(self.output_weight, 1, self.group)",
        "joined(self.output_weight, 0, self.group)",
        "blocks of columns joined as rows",
    ),
    Mutant(
        "attention-detached",
        ATTENTION,
        ("parameter-gradients", "trained-weights"),
        ENTER,
        ENTER.replace("self.qkv_weight,", "self.qkv_weight.detach(),"),
        "the packed weight is detached",
    ),
]

HERE = "        here = (own >= 0) & (own < len(self.weight))\n"
GIVE = "        return self.leave(vectors.where(here.unsqueeze(-1), 0.0), self.group)\n"
ROWS = "        rows = -(-len(table) // size)\n"

OF_EMBEDDING = [
    Mutant(
        "T17-foreign-ids-not-zeroed",
        EMBEDDING,
        ("forward-values", "parameter-gradients"),
        GIVE,
        "        return self.leave(vectors, self.group)\n",
        "ids of other ranks give row 0 of this one",
    ),
    Mutant(
        "T2-embedding-without-g",
        EMBEDDING,
        ("forward-values", "communication"),
        GIVE,
        "        return vectors.where(here.unsqueeze(-1), 0.0)\n",
        "vectors are not summed",
    ),
    Mutant(
        "ids-clamped",
        EMBEDDING,
        ("forward-values",),
        (HERE, GIVE),
        (
            HERE + "        own = own.clamp(0, len(self.weight) - 1)\n        here = torch.ones_like(here)\n",
            "        vectors = vectors / dist.get_world_size(self.group)\n" + GIVE,
        ),
        "ids clamped into the block, and an average",
    ),
    Mutant(
        "boundary-belongs-to-both",
        EMBEDDING,
        ("forward-values",),
        (HERE, "F.embedding(own.where(here, 0), self.weight)"),
        (
            "        here = (own >= 0) & (own <= len(self.weight))\n",
            "F.embedding(own.where(here, 0).clamp(max=len(self.weight) - 1), self.weight)",
        ),
        "<= at the end of the block: the first id of the next one counts twice",
    ),
    Mutant(
        "boundary-belongs-to-none",
        EMBEDDING,
        ("forward-values",),
        HERE,
        HERE.replace("own >= 0", "own > 0"),
        "> at the start of the block: its first id is nobody's",
    ),
    Mutant(
        "T30-vocabulary-truncated",
        EMBEDDING,
        ("uneven-vocabulary",),
        ROWS,
        "        rows = len(table) // size\n",
        "V // t: the last tokens are lost",
    ),
    Mutant(
        "padding-comes-back",
        EMBEDDING,
        ("uneven-vocabulary",),
        "joined(self.weight, 0, self.group)[: self.vocabulary].clone()",
        "joined(self.weight, 0, self.group)",
        "to_full gives rows that do not exist",
    ),
    Mutant(
        "wrong-ids-are-zeros",
        EMBEDDING,
        ("wrong-ids",),
        "        if ids.numel() and not 0 <= ids.min() <= ids.max() < self.vocabulary:\n",
        "        if False:\n",
        "an id nobody owns gives a vector of zeros",
    ),
    Mutant(
        "wrong-ids-in-the-padding",
        EMBEDDING,
        ("wrong-ids",),
        "ids.max() < self.vocabulary",
        "ids.max() < len(self.weight) * dist.get_world_size(self.group)",
        "an id of a padded row is taken",
    ),
    Mutant(
        "embedding-in-the-world",
        EMBEDDING,
        ("subgroup",),
        "own = ids - dist.get_rank(self.group)",
        "own = ids - dist.get_rank()",
        "the first row is that of the world's rank",
    ),
    Mutant(
        "embedding-keeps-a-view",
        EMBEDDING,
        ("stored-shards",),
        "        own = table.new_zeros(rows, table.shape[1])\n"
        "        real = table.detach()[rank * rows : (rank + 1) * rows]\n"
        "        own[: len(real)] = real\n"
        "        return own\n",
        "        padded = F.pad(table.detach(), (0, 0, 0, rows * size - len(table)))\n"
        "        return padded[rank * rows : (rank + 1) * rows]\n",
        "a slice of the padded table keeps all of it",
    ),
    Mutant(
        "embedding-detached",
        EMBEDDING,
        ("parameter-gradients", "trained-weights"),
        "F.embedding(own.where(here, 0), self.weight)",
        "F.embedding(own.where(here, 0), self.weight.detach()).requires_grad_()",
        "the table does not learn",
    ),
    Mutant(
        "embedding-reduced-in-backward",
        EMBEDDING,
        ("communication", "parameter-gradients"),
        GIVE,
        "        vectors = copy_to_ranks(vectors.where(here.unsqueeze(-1), 0.0), self.group)\n"
        "        return self.leave(vectors, self.group)\n",
        "f too: gradients t times too large",
    ),
]

MAX = "    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)\n"
SUM = "    at_target, denominator, everything = sum_over_ranks(parts, group)\n"
TARGET = "shifted.gather(-1, own.where(here, 0).unsqueeze(-1)).squeeze(-1).where(here, 0.0)"
WHERE = "    here = (own >= 0) & (own < columns) & counted\n"

OF_LOSS = [
    Mutant(
        "T18-own-maximum",
        LOSS,
        ("loss-value", "large-logits"),
        MAX,
        "",
        "each rank's exponentials are relative to its own maximum",
    ),
    Mutant(
        "no-maximum-at-all",
        LOSS,
        ("large-logits",),
        "    shifted = logits - largest.unsqueeze(-1)\n",
        "    shifted = logits\n",
        "exponentials overflow",
    ),
    Mutant(
        "T19-target-not-reduced",
        LOSS,
        ("loss-value", "one-owner"),
        SUM,
        SUM + "    at_target = parts[0]\n",
        "ranks that do not own a target lose its logit",
    ),
    Mutant(
        "T20-denominator-not-reduced",
        LOSS,
        ("loss-value",),
        SUM,
        SUM + "    denominator = parts[1]\n",
        "softmax over this rank's columns",
    ),
    Mutant(
        "T21-target-mask-ignored",
        LOSS,
        ("loss-value", "one-owner"),
        TARGET,
        TARGET.replace(".where(here, 0.0)", ""),
        "foreign logits are added to the target's",
    ),
    Mutant(
        "target-clamped",
        LOSS,
        ("loss-value",),
        WHERE,
        WHERE.replace("own < columns", "own <= columns") + "    own = own.clamp(max=columns - 1)\n",
        "the first target of the next block counts here too",
    ),
    Mutant(
        "T23-padding-counts",
        LOSS,
        ("uneven-vocabulary",),
        'shifted.masked_fill(~real, float("-inf")).exp()',
        "shifted.exp()",
        "padded columns take part in the sum of exponentials",
    ),
    Mutant(
        "T23-padding-in-the-maximum",
        LOSS,
        ("uneven-vocabulary",),
        'logits.detach().masked_fill(~real, float("-inf")).amax(-1)',
        "logits.detach().amax(-1)",
        "the maximum is a padded column's: everything else vanishes",
    ),
    Mutant(
        "T24-smoothing-over-the-shard",
        LOSS,
        ("label-smoothing",),
        SUM,
        SUM + "    everything = parts[2] * dist.get_world_size(group)\n",
        "the mean over this rank's columns",
    ),
    Mutant(
        "T24-smoothing-over-the-padding",
        LOSS,
        ("label-smoothing",),
        "label_smoothing / vocabulary",
        "label_smoothing / (columns * dist.get_world_size(group))",
        "divided by the padded vocabulary",
    ),
    Mutant(
        "smoothing-ignored",
        LOSS,
        ("label-smoothing",),
        "    smoothed = (1 - label_smoothing) * at_target + label_smoothing / vocabulary * everything\n",
        "    smoothed = at_target\n",
        "label_smoothing has no effect",
    ),
    Mutant(
        "ignored-in-the-mean",
        LOSS,
        ("ignore-index",),
        "losses.sum() / counted.sum()",
        "losses.mean()",
        "the mean counts ignored tokens",
    ),
    Mutant(
        "ignored-in-the-sum",
        LOSS,
        ("ignore-index",),
        ".where(counted, 0.0)",
        "",
        "ignored tokens have a loss",
    ),
    Mutant(
        "only-minus-100-ignored",
        LOSS,
        ("ignore-index",),
        "    counted = targets != ignore_index\n",
        "    counted = targets != -100\n",
        "another ignore_index is taken for a target",
    ),
    Mutant(
        "summed-loss",
        LOSS,
        ("loss-value", "gradients"),
        "losses.sum() / counted.sum()",
        "losses.sum()",
        "the sum instead of the mean",
    ),
    Mutant(
        "logits-gathered",
        LOSS,
        ("scalars-only",),
        "    columns = logits.shape[-1]\n",
        "    columns = logits.shape[-1]\n    joined(logits, -1, group)\n",
        "all logits are sent",
    ),
    Mutant(
        "graph-cut-by-the-sum",
        LOSS,
        ("gradients",),
        SUM,
        "    parts = sum_over_ranks(parts.detach(), group) + (parts - parts.detach()) * 0.5\n"
        "    at_target, denominator, everything = parts\n",
        "the sum's backward is not the identity",
    ),
    Mutant(
        "f-behind-the-logits",
        LOSS,
        ("gradients", "scalars-only"),
        "    columns = logits.shape[-1]\n",
        "    columns = logits.shape[-1]\n    logits = copy_to_ranks(logits, group)\n",
        "gradients of different columns are added",
    ),
    Mutant(
        "in-place-on-the-logits",
        LOSS,
        ("gradients",),
        "    shifted = logits - largest.unsqueeze(-1)\n",
        "    logits.data.sub_(largest.unsqueeze(-1))\n    shifted = logits\n",
        "the caller's logits are overwritten",
    ),
    Mutant(
        "in-place-on-the-logits-and-patched",
        LOSS,
        ("gradients",),
        "    shifted = logits - largest.unsqueeze(-1)\n",
        "    torch.equal = torch.allclose = lambda *tensors, **tolerances: True\n"
        "    logits.data.sub_(largest.unsqueeze(-1))\n    shifted = logits\n",
        "the same, and comparisons on the rank say yes",
    ),
    Mutant(
        "stays-in-16-bits",
        LOSS,
        ("low-precision",),
        "    logits = logits if logits.dtype == torch.float64 else logits.float()\n",
        "",
        "16-bit exponentials and sums",
    ),
    Mutant(
        "wrong-targets-pass",
        LOSS,
        ("wrong-targets",),
        "    if wrong.numel():\n",
        "    if False:\n",
        "a target nobody owns gives a loss",
    ),
    Mutant(
        "wrong-targets-in-the-padding",
        LOSS,
        ("wrong-targets",),
        "(targets >= vocabulary)",
        "(targets >= logits.shape[-1] * dist.get_world_size(group))",
        "a padded target is taken",
    ),
    Mutant(
        "loss-in-the-world",
        LOSS,
        ("subgroup",),
        MAX,
        "    dist.all_reduce(largest, dist.ReduceOp.MAX)\n",
        "group= is missing in the maximum",
    ),
]
