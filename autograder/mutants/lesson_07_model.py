"""Wrong answers to lesson 07: the block, the bytes it keeps, the GPT, and the norm of its gradient."""

from __future__ import annotations

from autograder.mutants import Mutant

BLOCK, BYTES = "07.tensor-parallel-block", "07.activation-bytes"
GPT, CLIP = "07.tensor-parallel-gpt", "07.clip-grad-norm"

NORM = "            weight, bias = (copy_to_ranks(p, self.group) for p in (weight, bias))\n"
DROP = "        with self.streams.own() if self.sequence_parallel else self.streams.shared():\n"
COPIES = "map(copy.deepcopy, (block.attention_norm, block.mlp_norm))"
MLP_HALF = "        return x + self._drop(self.mlp(self._norm(self.mlp_norm, x)))\n"
FIRST_HALF = "        x = x + self._drop(self.attention(self._norm(self.attention_norm, x)))\n"
LAYER_NORM = "        return F.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)\n"

OF_BLOCK = [
    Mutant(
        "T27-norm-gradients-not-summed",
        BLOCK,
        ("sequence-parallel",),
        NORM,
        "            pass\n",
        "norms learn from this rank's tokens only",
    ),
    Mutant(
        "norm-gradients-always-summed",
        BLOCK,
        ("parameter-gradients", "trained-weights", "communication"),
        "        if self.sequence_parallel:  # this rank's gradient knows this rank's tokens only\n",
        "        if True:\n",
        "without sequence parallelism they are whole already: t times too large",
    ),
    Mutant(
        "T12-residual-drops-apart",
        BLOCK,
        ("dropout",),
        DROP,
        "        with self.streams.own():\n",
        "the replicated region draws each rank's own numbers: ranks diverge",
    ),
    Mutant(
        "T12-divided-tokens-drop-alike",
        BLOCK,
        ("dropout",),
        DROP,
        "        with self.streams.shared():\n",
        "other tokens drop the same places",
    ),
    Mutant(
        "T11-attention-drops-alike",
        BLOCK,
        ("dropout",),
        "            with self.streams.own():\n",
        "            with self.streams.shared():\n",
        "heads on different ranks drop the same probabilities",
    ),
    Mutant(
        "no-stream-for-residuals",
        BLOCK,
        ("dropout",),
        DROP,
        "        with contextlib.nullcontext():\n",
        "whatever the global generator gives",
    ),
    Mutant(
        "no-stream-for-attention",
        BLOCK,
        ("dropout",),
        "        self.attention.attend = self._attend(self.attention.attend)\n",
        "",
        "equal only because nobody seeded alike",
    ),
    Mutant(
        "drops-in-evaluation",
        BLOCK,
        ("dropout",),
        "F.dropout(x, self.dropout, self.training)",
        "F.dropout(x + 1, self.dropout) - 1",
        "dropout after eval()",
    ),
    Mutant(
        "sequence-parallel-ignored",
        BLOCK,
        ("sequence-parallel", "sequence-communication"),
        (
            "        enter = sequence_column_parallel if sequence_parallel else column_parallel\n",
            "        leave = sequence_row_parallel if sequence_parallel else row_parallel\n",
        ),
        ("        enter = column_parallel\n", "        leave = row_parallel\n"),
        "each rank attends to its own tokens only",
    ),
    Mutant(
        "tokens-gathered-before-the-norm",
        BLOCK,
        ("sequence-communication", "kept-activations"),
        (FIRST_HALF, MLP_HALF),
        (
            "        if self.sequence_parallel:\n"
            "            whole = GatherSequence.apply(x, self.group)\n"
            "            self._norm(self.attention_norm, whole)\n"
            "            x = x + 0 * whole.square().chunk(dist.get_world_size(self.group), 1)[0]\n"
            + FIRST_HALF,
            MLP_HALF,
        ),
        "the norm sees all tokens on every rank",
    ),
    Mutant(
        "residual-through-f",
        BLOCK,
        ("input-gradients",),
        FIRST_HALF,
        "        x = x if self.sequence_parallel else copy_to_ranks(x, self.group)\n" + FIRST_HALF,
        "f in front of the residual too: its gradient is added t times",
    ),
    Mutant(
        "residual-summed",
        BLOCK,
        ("forward-values",),
        MLP_HALF,
        "        out = x + self._drop(self.mlp(self._norm(self.mlp_norm, x)))\n"
        "        return sum_over_ranks(out, self.group)\n",
        "x is added once a rank",
    ),
    Mutant(
        "post-norm",
        BLOCK,
        ("forward-values",),
        FIRST_HALF,
        "        x = self._norm(self.attention_norm, x + self._drop(self.attention(x)))\n",
        "the norm behind the residual",
    ),
    Mutant(
        "extra-sum",
        BLOCK,
        ("communication",),
        MLP_HALF,
        "        x = x + 0 * sum_over_ranks(x.detach(), self.group)\n" + MLP_HALF,
        "one more all-reduce, to no use",
    ),
    Mutant(
        "norms-shared",
        BLOCK,
        ("stored-shards", "trained-weights"),
        f"        self.attention_norm, self.mlp_norm = {COPIES}\n",
        "        self.attention_norm = self.mlp_norm = copy.deepcopy(block.attention_norm)\n",
        "one norm for two",
    ),
    Mutant(
        "whole-block-kept",
        BLOCK,
        ("stored-shards",),
        "        self.mlp = TensorParallelMLP(block.mlp, group, enter, leave)\n",
        "        self.mlp = TensorParallelMLP(block.mlp, group, enter, leave)\n"
        "        self.whole = (block,)\n",
        "the whole block stays in memory",
    ),
    Mutant(
        "norm-keeps-more",
        BLOCK,
        ("kept-activations",),
        LAYER_NORM,
        "        for _ in range(8):\n            x = x + torch.tanh(x) * 1e-300\n" + LAYER_NORM,
        "much more than needed is kept for backward",
    ),
    Mutant(
        "norm-detached",
        BLOCK,
        ("parameter-gradients",),
        "        weight, bias = norm.weight, norm.bias\n",
        "        weight, bias = norm.weight.detach(), norm.bias\n",
        "the norm's scale does not learn",
    ),
    Mutant(
        "block-in-the-world",
        BLOCK,
        ("subgroup",),
        "        self.mlp = TensorParallelMLP(block.mlp, group, enter, leave)\n",
        "        self.mlp = TensorParallelMLP(block.mlp, group, enter, leave)\n"
        "        self.mlp.group = dist.group.WORLD\n",
        "the MLP's sums are over the whole job",
    ),
]

OF_BYTES = [
    Mutant(
        "M8-everything-divided",
        BYTES,
        ("tensor-parallel",),
        "    outside = 10 / t if sequence_parallel else 10\n",
        "    outside = 10 / t\n",
        "34 / t without sequence parallelism",
    ),
    Mutant(
        "sequence-parallel-changes-nothing",
        BYTES,
        ("sequence-parallel",),
        "    outside = 10 / t if sequence_parallel else 10\n",
        "    outside = 10\n",
        "10 stays whole",
    ),
    Mutant(
        "M4-times-two",
        BYTES,
        ("tensor-parallel", "sequence-parallel"),
        "    return s * b * h * (",
        "    return 2 * s * b * h * (",
        "the bracket is in bytes already",
    ),
    Mutant(
        "scores-times-t",
        BYTES,
        ("tensor-parallel",),
        "5 * a * s / (h * t)",
        "5 * a * s / h * t",
        "5as/h*t, as printed on a slide",
    ),
    Mutant(
        "scores-whole", BYTES, ("sequence-parallel",), "5 * a * s / (h * t)", "5 * a * s / h", "scores uncut"
    ),
]

HEAD = "        head = self.tokens.weight if self.head_weight is None else self.head_weight\n"
LOGITS = "        logits = enter(x, head, None, self.group)\n"
LOSS = "        return vocab_parallel_cross_entropy(logits, targets, self.config.vocabulary, self.group)\n"
EMBED = "        x = self._drop(self.tokens(ids) + self._own_tokens(self.positions[:s]))\n"
FINAL = "        weight, bias = self._whole(self.norm.weight), self._whole(self.norm.bias)\n"
UNTIED = (
    "            self.head_weight = nn.Parameter(VocabParallelEmbedding.own_rows(full.head.weight, group))\n"
)

OF_GPT = [
    Mutant(
        "T1-head-without-f",
        GPT,
        ("parameter-gradients", "communication"),
        LOGITS,
        "        x = GatherSequence.apply(x, self.group) if self.sequence_parallel else x\n"
        "        logits = F.linear(x, head)\n",
        "the head's gradient knows this rank's columns only",
    ),
    Mutant(
        "tied-head-detached",
        GPT,
        ("parameter-gradients", "trained-weights"),
        LOGITS,
        LOGITS.replace("head,", "head.detach(),"),
        "the table learns from one of its uses",
    ),
    Mutant(
        "tied-head-copied",
        GPT,
        ("trained-weights", "stored-shards"),
        "        if not self.config.tied_embeddings:\n",
        "        if True:\n",
        "a head of its own that drifts away from the table",
    ),
    Mutant(
        "untied-head-not-used",
        GPT,
        ("untied",),
        "        enter = sequence_column_parallel if self.sequence_parallel else column_parallel\n" + HEAD,
        "        enter = sequence_column_parallel if self.sequence_parallel else column_parallel\n"
        "        head = self.tokens.weight\n",
        "the table is the head, whatever was asked for",
    ),
    Mutant(
        "T23-padded-vocabulary-in-the-loss",
        GPT,
        ("uneven-vocabulary",),
        LOSS,
        "        every = logits.shape[-1] * dist.get_world_size(self.group)\n"
        "        return vocab_parallel_cross_entropy(logits, targets, every, self.group)\n",
        "columns that do not exist get probability",
    ),
    Mutant(
        "logits-for-everybody",
        GPT,
        ("communication",),
        LOSS,
        "        joined(logits, -1, self.group)\n" + LOSS,
        "whole logits are gathered",
    ),
    Mutant(
        "no-positions",
        GPT,
        ("losses",),
        EMBED,
        "        x = self._drop(self.tokens(ids) + 0 * self._own_tokens(self.positions[:s]))\n",
        "every token stands at the same place",
    ),
    Mutant(
        "no-final-norm",
        GPT,
        ("losses",),
        "        x = F.layer_norm(x, self.norm.normalized_shape, weight, bias, self.norm.eps)\n",
        "",
        "the last norm is left out",
    ),
    Mutant(
        "one-block-only",
        GPT,
        ("losses",),
        "        for block in self.blocks:\n",
        "        for block in self.blocks[:1]:\n",
        "only the first block runs",
    ),
    Mutant(
        "T27-final-norm-not-summed",
        GPT,
        ("sequence-parallel",),
        FINAL,
        "        weight, bias = self.norm.weight, self.norm.bias\n",
        "the final norm learns from this rank's tokens",
    ),
    Mutant(
        "T27-positions-not-summed",
        GPT,
        ("sequence-parallel",),
        "        return self._whole(positions).chunk(size)[rank]\n",
        "        return positions.chunk(size)[rank]\n",
        "each rank trains the positions of its own tokens",
    ),
    Mutant(
        "first-positions-everywhere",
        GPT,
        ("sequence-parallel",),
        "        return self._whole(positions).chunk(size)[rank]\n",
        "        return self._whole(positions).chunk(size)[0]\n",
        "every rank's tokens start at position 0",
    ),
    Mutant(
        "T12-embedding-drops-apart",
        GPT,
        ("dropout",),
        "        with self.streams.own() if self.sequence_parallel else self.streams.shared():\n",
        "        with self.streams.own():\n",
        "ranks go different ways from the first layer on",
    ),
    Mutant(
        "padding-in-to-full",
        GPT,
        ("round-trip",),
        '        full["head.weight"] = joined(head, 0, self.group)[: self.config.vocabulary]\n',
        '        full["head.weight"] = joined(head, 0, self.group)\n',
        "the head comes back with rows that do not exist",
    ),
    Mutant(
        "to-full-forgets-the-norm",
        GPT,
        ("round-trip",),
        '        full |= {f"norm.{name}": value for name, value in self.norm.state_dict().items()}\n',
        "",
        "the final norm is not in the state dict",
    ),
    Mutant(
        "tokens-cut-off",
        GPT,
        ("refusals",),
        "        s = ids.shape[1]\n",
        "        most = ids.shape[1] // dist.get_world_size(self.group) * dist.get_world_size(self.group)\n"
        "        ids, targets = ids[:, :most], targets[:, :most]\n"
        "        s = ids.shape[1]\n",
        "tokens that do not divide are dropped in silence",
    ),
    Mutant(
        "whole-model-kept",
        GPT,
        ("stored-shards",),
        "        self.head_weight = None\n",
        "        self.head_weight = None\n        self.whole = (full,)\n",
        "the whole model stays in memory",
    ),
    Mutant(
        "untied-head-interleaved",
        GPT,
        ("untied",),
        UNTIED,
        "            rank, size = dist.get_rank(group), dist.get_world_size(group)\n"
        "            rows = full.head.weight.detach()[rank::size].clone()\n"
        "            self.head_weight = nn.Parameter(rows)\n",
        "every t-th row, while targets are looked for in blocks",
    ),
]

SQUARES = "    of_cut, of_whole = square_sum(cut), square_sum(whole)\n"
REDUCE = "    dist.all_reduce(of_cut, group=group)\n"
SCALE = "        for parameter in (*cut, *whole):\n"

OF_CLIP = [
    Mutant(
        "whole-counted-t-times",
        CLIP,
        ("total-norm", "scaled-gradients"),
        SQUARES + REDUCE,
        "    of_cut, of_whole = square_sum([*cut, *whole]), 0.0\n" + REDUCE,
        "replicated parameters count on every rank",
    ),
    Mutant(
        "norm-of-this-rank",
        CLIP,
        ("total-norm", "communication"),
        REDUCE,
        "",
        "each rank clips by its own norm: replicas drift apart",
    ),
    Mutant(
        "whole-not-counted",
        CLIP,
        ("total-norm",),
        "    norm = (of_cut + of_whole).sqrt()\n",
        "    norm = of_cut.sqrt()\n",
        "replicated parameters are left out",
    ),
    Mutant(
        "norms-added",
        CLIP,
        ("total-norm",),
        SQUARES,
        "    of_cut, of_whole = square_sum(cut).sqrt(), square_sum(whole)\n",
        "norms are added where squares are meant",
    ),
    Mutant(
        "only-cut-scaled",
        CLIP,
        ("scaled-gradients",),
        SCALE,
        "        for parameter in cut:\n",
        "whole ones stay",
    ),
    Mutant(
        "always-scaled",
        CLIP,
        ("small-norms",),
        "    if norm > max_norm:\n",
        "    if True:\n",
        "scaled up, too",
    ),
    Mutant(
        "skips-the-collective",
        CLIP,
        ("missing-gradients",),
        REDUCE,
        "    if cut:\n        dist.all_reduce(of_cut, group=group)\n"
        "    else:\n        raise RuntimeError('nothing to clip')\n",
        "a rank without cut parameters gives up",
    ),
    Mutant(
        "none-has-no-square",
        CLIP,
        ("missing-gradients",),
        "    gradients = [p.grad for p in parameters if p.grad is not None]\n",
        "    gradients = [p.grad for p in parameters]\n",
        "parameters without gradient raise",
    ),
    Mutant(
        "squares-in-16-bits",
        CLIP,
        ("low-precision",),
        "        total += gradient.double().square().sum()\n",
        "        total += gradient.square().sum()\n",
        "sums of squares in the gradient's own precision",
    ),
    Mutant(
        "one-call-a-parameter",
        CLIP,
        ("communication",),
        SQUARES + REDUCE,
        "    of_whole, of_cut = square_sum(whole), 0.0\n"
        "    for one in cut:\n        of_cut = of_cut + sum_over_ranks(square_sum([one]), group)\n",
        "an all-reduce for every parameter",
    ),
    Mutant(
        "clip-in-the-world",
        CLIP,
        ("subgroup",),
        REDUCE,
        "    dist.all_reduce(of_cut)\n",
        "group= is missing",
    ),
]
