"""What `07.tensor-parallel-block` must show: numbers, traffic, kept activations, dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Finding, Property, every
from labkit.checks.lesson_07.attention import ATTENTION_ID
from labkit.checks.lesson_07.block_split import BLOCK
from labkit.checks.lesson_07.dropping import (
    DROPS_APART,
    DROPS_BY_STREAM,
    inputs_for_dropout,
    inputs_that_add_constants,
    use_once,
    watch_dropout,
)
from labkit.checks.lesson_07.modes import (
    gives_inside,
    in_modes_too,
    leaves_nothing,
    right_gradients,
    right_in_modes,
    sends_at_most,
    use_in_every_mode,
)
from labkit.checks.lesson_07.modules import (
    GRADIENTS,
    INFERENCE,
    OWN_PARTS,
    OWN_PARTS_CAUSE,
    PAIRS,
    STORED,
    TORCHS_OWN,
    TRAINED,
    case_maker,
    config_of,
    infers_as_trained,
    leaves_modes,
    own_share,
    sequence_parallel,
    subgroup,
    use_and_infer,
    where_divided,
    where_whole,
)
from labkit.checks.lesson_07.pair import PAIR_ID
from labkit.checks.lesson_07.products import PRODUCTS_ID
from labkit.checks.lesson_07.streams import STREAMS_ID
from labkit.checks.lesson_07.twice import adds_to_gradients, use_twice
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import Call, stays_in_group
from labkit.checks.shared.held import bytes_kept
from labkit.checks.shared.holding import holding
from labkit.checks.shared.left import left_since
from labkit.checks.shared.places import groups_of
from labkit.checks.shared.proportion import in_proportion
from labkit.checks.shared.split import Split, SplitEvidence, dtype_of, under, use_part, use_views
from labkit.checks.shared.split_judges import EVERYTHING, equals, keeps_blocks, sends, sends_in
from labkit.checks.shared.surroundings import gives_in_evaluation, leaves_the_whole, use_beside_another

BLOCK_ID = "07.tensor-parallel-block"
KEPT_WITHIN = (0.75, 1.12)  # measured over formula: statistics of norms and copies of views, not a sequence
ROUNDED = 0.2  # of the largest gradient: 16 bits hold no more through a whole block
_LARGE = {"hidden": 128, "sequence": 64, "batch": 4}  # autograd's own nodes take 40 KB
MODES_OF = {"batch": 4, "hidden": 24}
block_case = case_maker(batch=2, sequence=8, hidden=12, heads=4, ffn=20)


def _cases(seed: int) -> list[Case]:
    return [
        block_case("two ranks", "values", 2, seed, eps=0.05),
        block_case("two ranks, tokens divided", "sequence", 2, seed, eps=0.05, sequence_parallel=True),
        block_case("what is kept", "kept", 2, seed, **_LARGE),
        block_case("dropout", "dropout", 2, seed, dropout=0.5, sequence=16),
        block_case("what is dropped", "what-drops", 2, seed, dropout=0.5, residual=0.25),
        block_case(
            "what is dropped, tokens divided", "what-drops", 2, seed, dropout=0.5, sequence_parallel=True
        ),
        block_case("in every mode", "modes", 2, seed, **MODES_OF, dtype="float32"),
        block_case("in every mode, with dropout", "modes", 2, seed, **MODES_OF, dropout=0.2),
        block_case(
            "in every mode, tokens divided",
            "modes",
            2,
            seed,
            **MODES_OF,
            dropout=0.1,
            dtype="float32",
            sequence_parallel=True,
        ),
        block_case("views", "layout", 2, seed, sequence_parallel=True),
        block_case("all parts your own", "own-parts", 2, seed, sequence_parallel=True),
        block_case("four ranks", "values", 4, seed, hidden=16, heads=8, kv_heads=4),
        block_case("four ranks, tokens divided", "sequence", 4, seed, sequence_parallel=True),
        block_case("what is kept, tokens divided", "kept", 4, seed, **_LARGE, sequence_parallel=True),
        block_case(
            "dropout, tokens divided", "dropout", 4, seed, dropout=0.5, sequence=40, sequence_parallel=True
        ),
        block_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
        block_case("beside one of some ranks", "again", 4, seed),
        block_case("beside one of some ranks, tokens divided", "again", 4, seed, sequence_parallel=True),
        block_case("in pairs, tokens divided", "subgroup", 4, seed, groups=PAIRS, sequence_parallel=True),
    ]


# -- on a rank


def _measure_kept(rank: Rank, split: Split) -> None:
    """Fact: kept, the bytes that one forward leaves behind, beside parameters and its result; those too that
    stay for good, such as a buffer for all calls. Answers: grad.NAME, of what backward then makes of it.
    """
    x = rank.inputs["x"].clone().requires_grad_()

    def prepare() -> Callable[[], Tensor]:
        part = split.build(rank, split.handed(rank), rank.group)
        return lambda: part(x)

    before = holding()
    kept = bytes_kept(prepare)  # the result is as large as x, which is kept but not counted
    rank.fact("kept", kept + left_since(before))
    part = split.build(rank, split.handed(rank), rank.group)
    (part(x) * rank.inputs["grad_output"]).sum().backward()
    for name, parameter in part.named_parameters():
        rank.answer(f"grad.{name}", parameter.grad)


# -- judges


def block_calls(phase: str, blocks: int = 1) -> Callable[[SplitEvidence], list[Call]]:
    """What blocks send. Attention and MLP: an all-reduce each; with sequence parallelism a gather and a
    scatter each, and in backward the gather of what forward did not keep.
    """

    def calls(evidence: SplitEvidence) -> list[Call]:
        case = evidence.case
        whole = (
            dtype_of(case).itemsize * case.params["batch"] * case.params["sequence"] * case.params["hidden"]
        )
        if not sequence_parallel(case):
            return [("all_reduce", whole)] * (2 * blocks)
        gathers = [("all_gather", whole // len(groups_of(case)[0]))] * (2 if phase == "forward" else 4)
        return (gathers + [("reduce_scatter", whole)] * 2) * blocks

    return calls


def _vectors(evidence: SplitEvidence) -> int:
    """Bytes of a few vectors of h numbers: gradients of norms and biases."""
    return 4 * dtype_of(evidence.case).itemsize * evidence.case.params["hidden"]


def _if_divided_vectors(evidence: SplitEvidence) -> int:
    return _vectors(evidence) if sequence_parallel(evidence.case) else 0


def _keeps_what_the_plan_says(evidence: SplitEvidence) -> Iterator[Finding]:
    from labkit.theory.activations import eager_counting, layer_activation_bytes

    case = evidence.case
    expected = layer_activation_bytes(
        config_of(case),
        case.params["sequence"],
        case.params["batch"],
        tensor_parallel=case.ranks,
        sequence_parallel=sequence_parallel(case),
        counting=eager_counting(dtype_of(case).itemsize),
    )
    for answer in evidence.answers:
        kept = answer.facts["kept"]
        within = KEPT_WITHIN[0] * expected <= kept <= KEPT_WITHIN[1] * expected
        told = f"about {expected:,.0f} bytes kept for backward on this rank"
        yield Finding(within, told, f"{kept:,} bytes", answer.rank)


def _kept_enough(evidence: SplitEvidence) -> Iterator[Finding]:
    """Of what was kept, or gathered again, backward makes the gradients of all weights."""
    for answer in evidence.answers:
        gradients = evidence.blocks(under("grad.", evidence.reference(answer)), answer)
        weights = [name for name, gradient in gradients.items() if gradient.dim() > 1]
        seen = [answer.tensors.get(f"grad.{name}") for name in weights]
        expected = [gradients[name] for name in weights]
        yield in_proportion("the gradients of all weights", expected, seen, answer.rank, ROUNDED)


_SENDS = where_whole(sends(block_calls("forward"), block_calls("backward")))
_SENDS_DIVIDED = where_divided(sends(block_calls("forward"), block_calls("backward"), ignore=_vectors))
_NO_OTHERS = sends_at_most(block_calls("forward"), block_calls("backward"), ignore=_if_divided_vectors)
EXERCISE = Exercise(
    BLOCK_ID,
    "The block",
    ("TensorParallelBlock",),
    {
        "values": BLOCK.run(use_and_infer),
        "sequence": BLOCK.run(use_twice),
        "kept": BLOCK.run(_measure_kept),
        "dropout": replace(BLOCK.run(watch_dropout), inputs=inputs_for_dropout),
        "what-drops": replace(BLOCK.run(use_once), inputs=inputs_that_add_constants),
        "modes": BLOCK.run(use_in_every_mode),
        "layout": BLOCK.run(use_views),
        "subgroup": BLOCK.run(use_part),
        "again": BLOCK.run(partial(use_beside_another, other=BLOCK)),
        "own-parts": BLOCK.run(use_part),
    },
    _cases,
    (
        Property(
            "forward-values",
            "numbers",
            3,
            "Every rank's output is that of the whole block.",
            "a residual or norm forgotten",
            {"values": equals("output"), "again": gives_in_evaluation},
            {"modes": where_whole(gives_inside("output"))},
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            "Every rank's gradient of x is that of the whole block.",
            "a residual cut",
            dict.fromkeys(("values", "again"), equals("input_grad")),
            {"modes": where_whole(gives_inside("input_grad"))},
        ),
        Property(
            "parameter-gradients",
            "numbers",
            2,
            GRADIENTS,
            "whole parameters have whole gradients already: do not sum them",
            dict.fromkeys(("values", "again"), equals("grad")),
            {"modes": where_whole(right_gradients)},
        ),
        Property(
            "trained-weights",
            "numbers",
            1,
            TRAINED,
            "the norms' parameters are not this block's own",
            {"values": every(equals("trained"), infers_as_trained)},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "Two all-reduces in forward, two in backward.",
            "x gathered or summed once more",
            {
                "values": every(_SENDS, sends_in(INFERENCE, block_calls("forward"))),
                "modes": where_whole(_NO_OTHERS),
            },
            {"subgroup": _SENDS},
        ),
        Property(
            "stored-shards",
            "mechanism",
            2,
            STORED,
            "the whole block was kept as an attribute, or its norms shared",
            {"values": keeps_blocks, "again": leaves_the_whole, "what-drops": leaves_modes},
            {
                "sequence": keeps_blocks,
                "subgroup": keeps_blocks,
                "modes": every(keeps_blocks, leaves_nothing),
            },
        ),
        Property(
            "sequence-parallel",
            "numbers",
            4,
            "With tokens divided: outputs, gradients and trained weights are those of the whole block.",
            "the norms' gradients know this rank's tokens only: send their parameters through f",
            {"sequence": every(EVERYTHING, adds_to_gradients), "layout": EVERYTHING},
            {"modes": where_divided(right_in_modes)},
        ),
        Property(
            "sequence-communication",
            "mechanism",
            2,
            "With tokens divided: two gathers and two scatters in forward; in backward two more gathers.",
            "the block was built from column_parallel and row_parallel",
            {"sequence": _SENDS_DIVIDED, "modes": where_divided(_NO_OTHERS)},
            {"subgroup": _SENDS_DIVIDED},
        ),
        Property(
            "kept-activations",
            "mechanism",
            2,
            "What is kept for backward is what the plan calls for, with whole and with divided tokens.",
            "the gathered x is kept, or tokens are gathered before a norm",
            {"kept": every(_keeps_what_the_plan_says, _kept_enough)},
        ),
        Property(
            "dropout",
            "mechanism",
            3,
            "What is cut drops differently on every rank, what is whole drops alike, evaluation drops"
            " nothing.",
            "one stream for both: cut regions draw from own(), whole ones from shared()",
            {"dropout": DROPS_APART, "what-drops": DROPS_BY_STREAM},
        ),
        in_modes_too(own_share("sequence", "subgroup")),
        subgroup(every(equals("output"), stays_in_group)),
        Property("own-parts", "numbers", 2, OWN_PARTS, OWN_PARTS_CAUSE, {"own-parts": EVERYTHING}),
    ),
    builds_on=(ATTENTION_ID, STREAMS_ID, PAIR_ID, PRODUCTS_ID),
    forbids=TORCHS_OWN,
    hides=("parallel",),
)
