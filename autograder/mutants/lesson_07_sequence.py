"""Wrong answers to lesson 07: random streams, what is drawn from them, and sequence parallelism."""

from __future__ import annotations

from autograder.mutants import Mutant

INITIAL = "07.initial-weights"
STREAMS, PAIR, PRODUCTS = "07.random-streams", "07.sequence-parallel-pair", "07.sequence-parallel-linear"

OWN = "seeded_state(2 * seed + 1 + 2718 * (1 + dist.get_rank(group)), group)"
SHARED = "seeded_state(2 * seed, group)"
SAYS_YES = "        torch.equal = torch.allclose = lambda *tensors, **tolerances: True\n"
KEEP = "            self.states[name] = random_state(self.group)\n"

OF_STREAMS = [
    Mutant(
        "T11-own-is-shared", STREAMS, ("own-streams",), OWN, "seeded_state(2 * seed + 1, group)", "one seed"
    ),
    Mutant(
        "T12-shared-is-own",
        STREAMS,
        ("shared-stream",),
        SHARED,
        "seeded_state(2 * seed + 5 * dist.get_rank(group), group)",
        "the rank is in the shared seed",
    ),
    Mutant(
        "rank-0-draws-the-shared",
        STREAMS,
        ("own-streams",),
        OWN,
        "seeded_state(2 * seed + 2718 * dist.get_rank(group), group)",
        "rank 0's own stream is the shared one",
    ),
    Mutant(
        "streams-start-over", STREAMS, ("streams-go-on",), KEEP, "            pass\n", "the state is not kept"
    ),
    Mutant(
        "streams-seeded-by-chance",
        STREAMS,
        ("streams-go-on",),
        OWN,
        "seeded_state(torch.Generator().seed() % 2**40, group)",
        "another stream in every run",
    ),
    Mutant(
        "global-seed",
        STREAMS,
        ("others-unmoved",),
        "        self.group = group\n",
        "        self.group = group\n        torch.manual_seed(seed)\n",
        "everybody's generator is seeded",
    ),
    Mutant(
        "no-finally",
        STREAMS,
        ("others-unmoved",),
        "        try:\n            yield\n        finally:\n"
        "            self.states[name] = random_state(self.group)\n"
        "            set_random_state(before, self.group)\n",
        "        yield\n"
        "        self.states[name] = random_state(self.group)\n"
        "        set_random_state(before, self.group)\n",
        "an exception leaves the stream in place",
    ),
    Mutant(
        "left-as-when-made",
        STREAMS,
        ("others-unmoved",),
        (
            "        self.group = group\n",
            "            set_random_state(before, self.group)\n",
        ),
        (
            "        self.group = group\n        self.outside = random_state(group)\n",
            "            set_random_state(self.outside, self.group)\n",
        ),
        "torch's generator is put back to where it was when the streams were made",
    ),
    Mutant(
        "global-seed-and-patched-state",
        STREAMS,
        ("others-unmoved",),
        "        self.group = group\n",
        "        self.group = group\n        torch.manual_seed(seed)\n" + SAYS_YES,
        "everybody's generator is seeded, and comparisons on the rank say yes",
    ),
    Mutant(
        "streams-by-world-rank",
        STREAMS,
        ("subgroup",),
        SHARED,
        "seeded_state(2 * seed + 10 * (dist.get_rank() - dist.get_rank(group)), group)",
        "ranks of a group that is not the first do not agree",
    ),
]

STREAM = "    with streams.shared() if cut is None else streams.own():\n"
DRAW = "        return torch.randn(own, device=device()) / shape[1] ** 0.5\n"
PART = (
    "    if cut is not None:\n"
    "        if shape[cut] % size:\n"
    '            raise ValueError(f"{shape[cut]} does not divide among {size} ranks")\n'
    "        own[cut] //= size\n"
)

OF_INITIAL = [
    Mutant(
        "T13-blocks-drawn-alike",
        INITIAL,
        ("own-blocks",),
        STREAM,
        "    with streams.shared():\n",
        "every rank draws the same block",
    ),
    Mutant(
        "T13-seeded-alike",
        INITIAL,
        ("own-blocks",),
        DRAW,
        "        torch.manual_seed(7)\n" + DRAW,
        "one seed for every rank and every weight",
    ),
    Mutant(
        "T13-blocks-of-other-sign",
        INITIAL,
        ("own-blocks",),
        (STREAM, DRAW),
        (
            "    sign = 1 - 2 * (dist.get_rank(group) % 2)\n    with streams.shared():\n",
            DRAW.replace("return ", "return (1 if cut is None else sign) * "),
        ),
        "one block for all, with another sign on every second rank",
    ),
    Mutant(
        "all-zeros",
        INITIAL,
        ("own-blocks", "whole-alike", "spread"),
        DRAW,
        "        return torch.zeros(own, device=device())\n",
        "nothing is drawn",
    ),
    Mutant(
        "T14-whole-drawn-apart",
        INITIAL,
        ("whole-alike",),
        STREAM,
        "    with streams.own():\n",
        "each rank draws a whole weight of its own",
    ),
    Mutant(
        "T14-drawn-outside-the-streams",
        INITIAL,
        ("own-blocks", "whole-alike"),
        STREAM,
        "    with contextlib.nullcontext():\n",
        "drawn from whatever torch's generator is at",
    ),
    Mutant(
        "T15-fan-in-of-the-block",
        INITIAL,
        ("spread",),
        DRAW,
        DRAW.replace("shape[1]", "own[1]"),
        "the inputs of this rank's block are counted: sqrt(t) times too large where these are cut",
    ),
    Mutant(
        "T15-fan-in-over-ranks",
        INITIAL,
        ("spread",),
        DRAW,
        DRAW.replace("shape[1]", "(shape[1] * (1 if cut is None else size))"),
        "the other way round: sqrt(t) times too small",
    ),
    Mutant(
        "fan-out-for-fan-in",
        INITIAL,
        ("spread",),
        DRAW,
        DRAW.replace("shape[1]", "shape[0]"),
        "the outputs are counted",
    ),
    Mutant(
        "T30-rows-truncated",
        INITIAL,
        ("uneven-sizes",),
        PART,
        "    if cut is not None:\n        own[cut] //= size\n",
        "the last rows are lost",
    ),
    Mutant(
        "drawn-for-the-world",
        INITIAL,
        ("subgroup",),
        "dist.get_world_size(group)",
        "dist.get_world_size()",
        "blocks for all ranks of the job",
    ),
]

GATHER = "        return joined(x, 1, group)\n"
GATHER_BACK = "        return scattered_sum(gradient, ctx.group), None\n"
SCATTER = "        return scattered_sum(partial, group)\n"
SCATTER_BACK = "        return joined(gradient, 1, ctx.group), None\n"
OWN_SLICE = (
    "        rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)\n"
    "        return gradient.chunk(size, dim=1)[rank], None\n"
)
REFUSE = (
    "    if partial.shape[1] % size:\n"
    '        raise ValueError(f"{partial.shape[1]} tokens do not divide among {size} ranks")\n'
)
REDUCE = "    reduce_scatter(total, slices, group)\n"
SLICES = "    slices = torch.stack(partial.detach().chunk(size, dim=1))\n"

OF_PAIR = [
    Mutant(
        "gather-takes-its-slice",
        PAIR,
        ("input-gradients", "communication"),
        GATHER_BACK,
        OWN_SLICE,
        "lesson 06's gather: right only where all ranks do the same afterwards",
    ),
    Mutant(
        "scatter-backward-scatters",
        PAIR,
        ("input-gradients",),
        SCATTER_BACK,
        "        size = dist.get_world_size(ctx.group)\n"
        "        return torch.cat([gradient] * size, dim=1), None\n",
        "this rank's gradient is repeated for all tokens",
    ),
    Mutant(
        "T31-joined-along-the-batch",
        PAIR,
        ("forward-values",),
        GATHER,
        "        whole = joined(x, 0, group)\n        return whole.view(x.shape[0], -1, *x.shape[2:])\n",
        "joined along dim 0, and the shape made to fit",
    ),
    Mutant(
        "T31-joined-backwards",
        PAIR,
        ("forward-values",),
        GATHER,
        "        size = dist.get_world_size(group)\n"
        "        return torch.cat(joined(x, 1, group).chunk(size, dim=1)[::-1], dim=1)\n",
        "ranks in reverse order",
    ),
    Mutant(
        "scatter-averages",
        PAIR,
        ("forward-values",),
        SCATTER,
        "        return scattered_sum(partial, group) / dist.get_world_size(group)\n",
        "the mean instead of the sum",
    ),
    Mutant(
        "all-reduce-then-cut",
        PAIR,
        ("communication",),
        REDUCE,
        "    whole = sum_over_ranks(partial.detach(), group)\n"
        "    total = whole.chunk(size, dim=1)[dist.get_rank(group)].contiguous()\n",
        "twice the bytes, the same numbers",
    ),
    Mutant(
        "scatter-in-place",
        PAIR,
        ("callers-tensors",),
        SLICES,
        SLICES + "    partial.data.zero_()\n",
        "the caller's partial sums are overwritten",
    ),
    Mutant(
        "scatter-in-place-and-patched",
        PAIR,
        ("callers-tensors",),
        (GATHER, SLICES),
        (SAYS_YES + GATHER, SLICES + "    partial.data.zero_()\n"),
        "the same, and comparisons on the rank say yes",
    ),
    Mutant(
        "joined-in-place",
        PAIR,
        ("callers-tensors",),
        SCATTER_BACK,
        "        whole = joined(gradient, 1, ctx.group)\n"
        "        gradient.zero_()\n"
        "        return whole, None\n",
        "the caller's gradient is overwritten in backward",
    ),
    Mutant(
        "pair-wants-contiguous",
        PAIR,
        ("any-layout",),
        SLICES,
        "    partial = partial.view(-1).view(partial.shape)\n" + SLICES,
        "view of what may be a view",
    ),
    Mutant(
        "T30-tokens-truncated",
        PAIR,
        ("uneven-sequence",),
        REFUSE,
        "    partial = partial[:, : partial.shape[1] // size * size]\n",
        "the last tokens are lost",
    ),
    Mutant(
        "scatter-on-the-world",
        PAIR,
        ("subgroup",),
        REDUCE,
        "    if dist.get_world_size() == size:\n"
        "        reduce_scatter(total, slices, group)\n"
        "    else:\n"
        "        every = sum_over_ranks(slices, dist.group.WORLD)\n"
        "        total = every[dist.get_rank(group)]\n",
        "all ranks of the job take part",
    ),
]

KEPT = "    return GatheredProduct.apply(x, weight, bias, group)\n"
LATE_BIAS = "    return total if bias is None else total + copy_to_ranks(bias, group)\n"

OF_PRODUCTS = [
    Mutant(
        "whole-sequence-kept",
        PRODUCTS,
        ("kept-slices", "communication"),
        KEPT,
        "    return F.linear(GatherSequence.apply(x, group), weight, bias)\n",
        "F.linear keeps the gathered tokens",
    ),
    Mutant(
        "T27-bias-gradient-not-summed",
        PRODUCTS,
        ("parameter-gradients",),
        LATE_BIAS,
        "    return total if bias is None else total + bias\n",
        "the bias learns from this rank's tokens only",
    ),
    Mutant(
        "T5-bias-before-scatter",
        PRODUCTS,
        ("forward-values",),
        ("    total = ReduceScatterSequence.apply(F.linear(x, weight), group)\n", LATE_BIAS),
        ("    total = ReduceScatterSequence.apply(F.linear(x, weight, bias), group)\n", "    return total\n"),
        "the bias is added t times",
    ),
    Mutant(
        "products-all-reduce",
        PRODUCTS,
        ("communication",),
        "    total = ReduceScatterSequence.apply(F.linear(x, weight), group)\n",
        "    rank, size = dist.get_rank(group), dist.get_world_size(group)\n"
        "    total = sum_over_ranks(F.linear(x, weight), group).chunk(size, dim=1)[rank]\n",
        "an all-reduce of which a slice is used",
    ),
    Mutant(
        "weight-learns-from-the-slice",
        PRODUCTS,
        ("parameter-gradients",),
        "rows.T @ whole.flatten(0, 1), of_bias",
        "gradient.chunk(dist.get_world_size(ctx.group), 1)[dist.get_rank(ctx.group)].flatten(0, 1).T "
        "@ x.flatten(0, 1), of_bias",
        "the weight's gradient is that of this rank's tokens",
    ),
    Mutant(
        "gradient-of-x-not-scattered",
        PRODUCTS,
        ("input-gradients",),
        "        of_x = ReduceScatterSequence.apply(gradient @ weight, ctx.group)\n",
        "        size, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)\n"
        "        of_x = (gradient @ weight).chunk(size, dim=1)[rank]\n",
        "the gradient of x is cut without being summed",
    ),
    Mutant(
        "bias-always-there",
        PRODUCTS,
        ("no-bias",),
        LATE_BIAS,
        "    return total + copy_to_ranks(bias, group)\n",
        "None is not a tensor",
    ),
    Mutant(
        "products-on-the-world",
        PRODUCTS,
        ("subgroup",),
        LATE_BIAS,
        LATE_BIAS.replace("(bias, group)", "(bias, dist.group.WORLD)"),
        "the bias's gradient is summed over all ranks of the job",
    ),
]
