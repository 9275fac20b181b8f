"""What is worth points in lesson 07: the properties of each exercise, and what usually breaks them."""

from __future__ import annotations

from labkit.checks.exercise import Property
from labkit.checks.lesson_07.trial import STEPS
from labkit.checks.old_form import mechanism, numbers, robustness

SUBGROUP = robustness(
    "subgroup",
    1,
    "It works in a group that is not the whole job.",
    "dist.get_rank() or get_world_size() without the group, or a collective without group=",
)
OWN_PARTS = numbers(
    "own-parts",
    2,
    "Built from your own earlier parts it equals the whole one.",
    "an earlier exercise does not pass yet; the other properties are judged with its reference",
)


def _gradients(points: int, cause: str) -> Property:
    says = "Each rank's parameter gradients are its blocks of the whole module's."
    return numbers("parameter-gradients", points, says, cause)


def _trained(points: int, cause: str) -> Property:
    says = f"After {STEPS} steps of SGD, each rank holds its blocks of the trained module."
    return numbers("trained-weights", points, says, cause)


def _stored(points: int, cause: str) -> Property:
    says = "Each rank keeps its blocks under the names asked for, and nothing else stays in memory."
    return mechanism("stored-shards", points, says, cause)


ATTENTION_PROPERTIES = (
    numbers(
        "forward-values",
        3,
        "Every rank's output is that of the whole attention.",
        "the packed weight was cut in one piece, so that rank 0 has all queries and the last rank all values;"
        " or heads were read as [d, heads] instead of [heads, d]",
    ),
    numbers(
        "input-gradients",
        2,
        "Every rank's gradient of x is that of the whole attention.",
        "x did not enter through `enter`, which sums its gradient in backward",
    ),
    _gradients(2, "a block was detached, or a collective stands between the two products"),
    _trained(1, "forward computes from something else than the four parameters"),
    numbers(
        "grouped-query",
        3,
        "It works with fewer key-value heads than heads, and with any head size.",
        "keys and values have k / t heads on a rank, not a / t; the head size is config.head_size",
    ),
    mechanism(
        "communication",
        2,
        "One all-reduce of b s h numbers in forward, one in backward.",
        "heads were gathered before the output projection",
    ),
    _stored(2, "the output bias is whole; the packed weight is [(a + 2k) d / t, h]"),
    numbers(
        "round-trip",
        2,
        "to_full gives the state dict of the whole attention, after training too.",
        "queries, keys and values are packed by rank: split a rank's block before joining the ranks'",
    ),
    robustness(
        "refusals",
        1,
        "Heads, or key-value heads, that do not divide among the ranks are a ValueError that names both.",
        "heads // t drops the rest, and 2 // 4 leaves none",
    ),
    robustness(
        "any-layout", 1, "x and gradients that are not contiguous work.", "use reshape or flatten for view"
    ),
    SUBGROUP,
)

EMBEDDING_PROPERTIES = (
    numbers(
        "forward-values",
        3,
        "Every rank has the vectors of all ids.",
        "an id of another rank's block must give zeros before the sum, not a row of this block; the block's"
        " last row is still this rank's",
    ),
    _gradients(2, "ids of other ranks add to this rank's rows: mask the vectors, not only the ids"),
    _trained(1, "the table is not an nn.Parameter"),
    mechanism(
        "communication", 2, "One all-reduce of b s h numbers in forward, nothing in backward.", "f in front"
    ),
    _stored(2, "a slice is a view that keeps the whole table in memory: copy it"),
    robustness(
        "uneven-vocabulary",
        2,
        "Vocabularies that do not divide are filled with rows of zeros, and come back without them.",
        "every rank has ceil(V / t) rows; the last ranks may have fewer real ones, or none",
    ),
    robustness(
        "wrong-ids",
        1,
        "An id outside the vocabulary is an IndexError on every rank.",
        "no rank owns such an id, so that its vector is silently zero",
    ),
    SUBGROUP,
)

LOSS_PROPERTIES = (
    numbers(
        "loss-value",
        3,
        "Every rank has the mean loss of all tokens.",
        "the maximum, the sum of exponentials or the target's logit was not reduced over the ranks",
    ),
    numbers(
        "gradients",
        3,
        "Each rank has its columns of the gradient: softmax minus one at the target.",
        "a sum that is differentiated needs g, whose backward is the identity; all_reduce cuts the graph",
    ),
    mechanism(
        "scalars-only",
        3,
        "A few numbers a token are sent, in forward only.",
        "the logits were gathered: that is V numbers a token",
    ),
    robustness(
        "one-owner", 1, "All targets may lie on one rank.", "the other ranks must add zero, not logit 0"
    ),
    robustness(
        "uneven-vocabulary",
        2,
        "Columns beyond the vocabulary are as if they were not there.",
        "they take part in the maximum or the sum of exponentials; set them to -inf",
    ),
    numbers(
        "ignore-index",
        2,
        "Tokens to be ignored count neither in the sum nor in the mean.",
        "the mean is over the tokens that count; -100 is not a wrong target",
    ),
    numbers(
        "label-smoothing",
        2,
        "Label smoothing spreads over the whole vocabulary.",
        "the mean over this rank's columns, or over padded ones, instead of over all V",
    ),
    robustness(
        "large-logits",
        2,
        "Logits in the hundreds, largest on different ranks, neither overflow nor vanish.",
        "each rank took its own maximum: exponentials must be relative to one maximum for all",
    ),
    robustness("low-precision", 1, "16-bit logits are computed with as float32.", "lift them before exp"),
    robustness(
        "wrong-targets",
        1,
        "A target outside the vocabulary is a ValueError on every rank.",
        "no rank owns it, so that the loss is silently too large",
    ),
    SUBGROUP,
)

STREAMS_PROPERTIES = (
    mechanism("shared-stream", 2, "Inside shared() all ranks draw the same.", "its seed depends on the rank"),
    mechanism("own-streams", 2, "Inside own() each rank draws numbers of its own.", "one seed for all ranks"),
    mechanism(
        "streams-go-on",
        2,
        "Each stream goes on where it stopped, and is set by the seed alone.",
        "the state was not kept on leaving, so that every layer would drop the same places",
    ),
    robustness(
        "others-unmoved",
        1,
        "Torch's own generator is left as it was, after an exception too.",
        "try/finally; torch.manual_seed seeds the generator everybody uses",
    ),
    robustness(
        "subgroup", 1, "The ranks of a group share a stream, by their rank in it.", SUBGROUP.usual_cause
    ),
)

INITIAL_PROPERTIES = (
    mechanism(
        "own-blocks",
        2,
        "Each rank draws a block of its own of a cut weight, and other numbers the next time.",
        "the block was drawn from shared(), so that all ranks have the same features",
    ),
    mechanism(
        "whole-alike",
        2,
        "A whole weight is the same on every rank.",
        "it was drawn from own(): the copies differ from the first step on",
    ),
    numbers(
        "spread",
        2,
        "The standard deviation is 1 / sqrt(in), with `in` of the whole weight.",
        "a block cut along dim 1 has in / t inputs; the rest of the sum is on the other ranks",
    ),
    robustness(
        "uneven-sizes",
        1,
        "A size that does not divide is a ValueError that names it and the ranks.",
        "n // t drops the rest",
    ),
    SUBGROUP,
)

PAIR_PROPERTIES = (
    numbers(
        "forward-values",
        3,
        "One joins all tokens in rank order; the other adds, and keeps this rank's tokens.",
        "tokens are dim 1; the first dimension is the batch",
    ),
    numbers(
        "input-gradients",
        3,
        "The backward of each is the forward of the other.",
        "behind the gather every rank uses all tokens, so their gradients must be added, not only cut",
    ),
    mechanism(
        "communication",
        2,
        "One all_gather or one reduce_scatter each way, of this rank's slice or the whole.",
        "an all_reduce that is cut afterwards sends twice as much",
    ),
    robustness("callers-tensors", 1, "What was handed over still holds what it held.", "reduce a copy"),
    robustness(
        "any-layout", 1, "Tensors that are not contiguous work.", "a slice along dim 1 is not contiguous"
    ),
    robustness(
        "uneven-sequence",
        1,
        "A number of tokens that does not divide is a ValueError that names both.",
        "chunk gives slices of different sizes",
    ),
    SUBGROUP,
)

PRODUCTS_PROPERTIES = (
    numbers(
        "forward-values", 2, "Each rank has its tokens of what F.linear gives.", "the bias was added t times"
    ),
    numbers(
        "input-gradients",
        2,
        "Each rank has its tokens of the gradient of x.",
        "reduce-scatter the gradient of the gathered x",
    ),
    numbers(
        "parameter-gradients",
        3,
        "Blocks of weights have the gradient of all tokens, and so has the whole bias.",
        "the bias is added to this rank's tokens only: its gradient must be summed over the ranks",
    ),
    mechanism(
        "kept-slices",
        2,
        "Backward keeps this rank's tokens of x, not all of them.",
        "F.linear keeps the gathered x: save the slice in a function of your own, and gather again",
    ),
    mechanism(
        "communication",
        2,
        "Forward: one gather, one scatter. Backward: the same, and x gathered once more.",
        "an all_reduce where a reduce_scatter would do",
    ),
    robustness("no-bias", 1, "A product without bias works.", "bias is None"),
    SUBGROUP,
)

BLOCK_PROPERTIES = (
    numbers(
        "forward-values", 3, "Every rank's output is that of the whole block.", "a residual or norm forgotten"
    ),
    numbers("input-gradients", 2, "Every rank's gradient of x is that of the whole block.", "a residual cut"),
    _gradients(2, "whole parameters have whole gradients already: do not sum them"),
    _trained(1, "the norms' parameters are not this block's own"),
    mechanism(
        "communication", 2, "Two all-reduces in forward, two in backward.", "x gathered or summed once more"
    ),
    _stored(2, "the whole block was kept as an attribute, or its norms shared"),
    numbers(
        "sequence-parallel",
        4,
        "With tokens divided: outputs, gradients and trained weights are those of the whole block.",
        "the norms' gradients know this rank's tokens only: send their parameters through f",
    ),
    mechanism(
        "sequence-communication",
        2,
        "With tokens divided: two gathers and two scatters in forward; in backward two more gathers.",
        "the block was built from column_parallel and row_parallel",
    ),
    mechanism(
        "kept-activations",
        2,
        "What is kept for backward is what the plan calls for, with whole and with divided tokens.",
        "the gathered x is kept, or tokens are gathered before a norm",
    ),
    mechanism(
        "dropout",
        3,
        "What is cut drops differently on every rank, what is whole drops alike, evaluation drops nothing.",
        "one stream for both: cut regions draw from own(), whole ones from shared()",
    ),
    SUBGROUP,
    OWN_PARTS,
)

GPT_PROPERTIES = (
    numbers("losses", 3, "Every rank has the loss of the whole model.", "positions, norm or head left out"),
    _gradients(3, "a tied table learns from both its uses; f belongs in front of the head"),
    _trained(2, "two parameters where one is meant"),
    _stored(2, "the whole model was kept as an attribute"),
    mechanism(
        "communication",
        2,
        "The blocks' all-reduces, one for the embedding, one for the head; nothing as large as logits.",
        "logits were gathered",
    ),
    numbers(
        "untied", 2, "A head of its own works.", "head_weight must be cut by rows of the vocabulary, and used"
    ),
    robustness(
        "uneven-vocabulary", 2, "So do vocabularies that do not divide.", "padded columns in the loss"
    ),
    numbers(
        "sequence-parallel",
        3,
        "With tokens divided it is still the same model.",
        "positions and final norm see this rank's tokens only: send them through f, and take the slice",
    ),
    numbers(
        "round-trip",
        2,
        "to_full gives the state dict of the trained Transformer.",
        "the table with its padding",
    ),
    mechanism(
        "dropout", 1, "With dropout, losses and whole gradients agree on all ranks.", "the wrong stream"
    ),
    robustness(
        "refusals", 1, "Tokens that do not divide are a ValueError that names both sizes.", "chunk is silent"
    ),
    OWN_PARTS,
)

CLIP_PROPERTIES = (
    numbers(
        "total-norm",
        3,
        "The norm is that of the whole model's gradient.",
        "whole parameters counted on every rank: t times too much; or norms added where squares are meant",
    ),
    numbers(
        "scaled-gradients", 2, "All gradients are scaled by max_norm / norm.", "only the cut ones were scaled"
    ),
    mechanism(
        "communication", 1, "One all-reduce of one number.", "one for each parameter; or gradients gathered"
    ),
    robustness("small-norms", 1, "A smaller norm leaves gradients as they are.", "scaled up to max_norm"),
    robustness(
        "missing-gradients",
        1,
        "Parameters without gradient are left out; a rank without cut parameters takes part.",
        "`if cut:` around the collective leaves the other ranks waiting",
    ),
    robustness(
        "low-precision", 1, "Squares of 16-bit gradients are summed in 32 bits.", "float() before square()"
    ),
    SUBGROUP,
)

BYTES_PROPERTIES = (
    numbers(
        "tensor-parallel",
        2,
        "Without sequence parallelism: what is whole on every rank, and a t-th of what is cut.",
        "norms, dropout and the inputs of both regions are whole on every rank",
    ),
    numbers("sequence-parallel", 2, "With it: a t-th of everything.", "the table is in bytes already"),
)
