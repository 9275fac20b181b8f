"""What `07.tensor-parallel-gpt` must show: the whole model, its loss and its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Exercise, Property, Run, every
from labkit.checks.lesson_07.attention import ATTENTION_ID
from labkit.checks.lesson_07.between import SHAPE, divided_between, keep_of_one_and_two
from labkit.checks.lesson_07.block import BLOCK_ID
from labkit.checks.lesson_07.embedding import EMBEDDING_ID
from labkit.checks.lesson_07.loss import LOSS_ID
from labkit.checks.lesson_07.model_calls import (
    NO_OTHERS,
    NO_OTHERS_DIVIDED,
    SENDS,
    calls_if_divided,
    calls_of_model,
    numbers_a_token,
)
from labkit.checks.lesson_07.model_dropout import DROPS_AS_ONE_MODEL, watch_model_dropout
from labkit.checks.lesson_07.modes import (
    in_modes_too,
    leaves_nothing,
    right_gradients,
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
    any_layout,
    at_boundaries,
    case_maker,
    comes_back,
    config_of,
    fewer_tokens,
    infers_as_trained,
    leaves_modes,
    own_share,
    refused_sizes,
    sequence_parallel,
    use_and_infer,
    use_and_return,
    where_divided,
    where_whole,
    with_eps,
)
from labkit.checks.lesson_07.pair import PAIR_ID
from labkit.checks.lesson_07.products import PRODUCTS_ID
from labkit.checks.lesson_07.streams import STREAMS_ID
from labkit.checks.lesson_07.twice import adds_to_gradients, use_twice
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import is_refused
from labkit.checks.shared.cuts import cut_gpt
from labkit.checks.shared.places import enter_group
from labkit.checks.shared.split import (
    Drawn,
    Split,
    dtype_of,
    use_part,
    use_views,
)
from labkit.checks.shared.split_judges import EVERYTHING, equals, keeps_blocks, sends_in
from labkit.checks.shared.surroundings import gives_in_evaluation, leaves_the_whole, use_beside_another
from labkit.model import Transformer, explicit_attention

GPT_ID = "07.tensor-parallel-gpt"


def _drawn(case: Case) -> dict[str, Drawn]:
    batch, sequence, below = (case.params[name] for name in ("batch", "sequence", "vocabulary"))
    one = Drawn((batch, sequence), below=below, later=(batch, fewer_tokens(case)))
    return {"ids": one, "targets": one}


def _loss(model: nn.Module, arguments: Sequence[Tensor]) -> Tensor:
    return model.loss(*arguments)  # type: ignore[operator]


GPT = Split(
    plain=lambda case: with_eps(Transformer(config_of(case), explicit_attention).to(dtype_of(case)), case),
    build=lambda rank, full, group: rank.student.TensorParallelGPT.from_full(
        full, group, rank.case.seed, sequence_parallel(rank.case)
    ),
    cut=cut_gpt,
    drawn=_drawn,
    arguments=("ids", "targets"),
    use=_loss,
)
MODES_OF = {"batch": 4, "hidden": 24, "vocabulary": 96}  # logits are far more than positions
gpt_case = case_maker(batch=2, sequence=8, hidden=12, heads=4, ffn=20, layers=1, vocabulary=24)


def _cases(seed: int) -> list[Case]:
    return [
        gpt_case("two ranks", "values", 2, seed, layers=2, eps=0.05),
        gpt_case("ids that are views", "layout", 2, seed),
        gpt_case("untied", "untied", 2, seed, tied=False),
        gpt_case("23 tokens", "uneven-vocabulary", 2, seed, vocabulary=23),
        gpt_case("back to one", "round-trip", 2, seed, vocabulary=23, tied=False, layers=2),
        gpt_case("dropout", "dropout", 2, seed, dropout=0.3, layers=2),
        gpt_case(
            "dropout, tokens divided",
            "dropout",
            2,
            seed,
            dropout=0.5,
            batch=1,
            hidden=32,
            sequence_parallel=True,
        ),
        gpt_case("in every mode", "modes", 2, seed, **MODES_OF, dtype="float32"),
        gpt_case("in every mode, with dropout", "modes", 2, seed, **MODES_OF, dropout=0.2, tied=False),
        gpt_case("in every mode, tokens divided", "modes", 2, seed, **MODES_OF, sequence_parallel=True),
        gpt_case("all parts your own", "own-parts", 2, seed, vocabulary=23, sequence_parallel=True),
        gpt_case("four ranks, 7 tokens a sequence", "values", 4, seed, sequence=7),
        gpt_case("22 tokens, untied", "uneven-vocabulary", 4, seed, vocabulary=22, tied=False),
        gpt_case("tokens divided", "sequence-parallel", 4, seed, vocabulary=22, sequence_parallel=True),
        gpt_case("back to one, tied", "round-trip", 4, seed, vocabulary=22),
        gpt_case("in pairs", "sequence-parallel", 4, seed, groups=PAIRS, tied=False, sequence_parallel=True),
        gpt_case("beside one of some ranks", "again", 4, seed),
        gpt_case("back to one, in pairs", "round-trip", 4, seed, groups=PAIRS, tied=False),
        gpt_case("what is kept, tokens divided", "kept", 4, seed, **SHAPE, sequence_parallel=True),
        gpt_case("6 tokens a sequence", "refused", 4, seed, sequence=6, sequence_parallel=True, names=[6, 4]),
    ]


def _divide_uneven_tokens(rank: Rank, split: Split) -> None:
    """Fact: refusal."""
    part = split.build(rank, split.plain(rank.case).to(rank.device), enter_group(rank))
    with rank.expect_error("refusal"):
        split.use(part, [rank.inputs["ids"], rank.inputs["targets"]])


def _begin_alike(run: Run) -> Run:
    """The run in which, where the case says so, an untied head begins as a copy of the table."""

    def inputs(case: Case, generator: torch.Generator) -> Inputs:
        found = run.inputs(case, generator)
        if case.params.get("head_as_table"):
            found |= {f"{kind}.head.weight": found[f"{kind}.tokens.weight"] for kind in ("full", "noise")}
        return found

    return replace(run, inputs=inputs)


_USED = at_boundaries(GPT.run(use_part))
EXERCISE = Exercise(
    GPT_ID,
    "The whole model",
    ("TensorParallelGPT",),
    {
        "values": at_boundaries(GPT.run(use_and_infer)),
        "layout": at_boundaries(GPT.run(use_views)),
        "untied": _begin_alike(_USED),
        "uneven-vocabulary": _USED,
        "sequence-parallel": at_boundaries(GPT.run(use_twice)),
        "round-trip": at_boundaries(GPT.run(use_and_return)),
        "dropout": at_boundaries(GPT.run(watch_model_dropout)),
        "modes": at_boundaries(GPT.run(use_in_every_mode)),
        "again": at_boundaries(GPT.run(partial(use_beside_another, other=GPT))),
        "kept": GPT.run(keep_of_one_and_two),
        "refused": GPT.run(_divide_uneven_tokens),
        "own-parts": _USED,
    },
    _cases,
    (
        Property(
            "losses",
            "numbers",
            3,
            "Every rank has the loss of the whole model.",
            "positions, norm or head left out",
            {"values": equals("output"), "again": gives_in_evaluation},
        ),
        Property(
            "parameter-gradients",
            "numbers",
            3,
            GRADIENTS,
            "a tied table learns from both its uses; f belongs in front of the head",
            dict.fromkeys(("values", "again"), equals("grad")),
            {"modes": where_whole(right_gradients)},
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            TRAINED,
            "two parameters where one is meant",
            {"values": every(equals("trained"), infers_as_trained)},
        ),
        Property(
            "stored-shards",
            "mechanism",
            2,
            STORED,
            "the whole model was kept as an attribute",
            {
                "values": keeps_blocks,
                "untied": keeps_blocks,
                "again": leaves_the_whole,
                "dropout": leaves_modes,
            },
            dict.fromkeys(("layout", "uneven-vocabulary", "sequence-parallel", "round-trip"), keeps_blocks)
            | {"modes": every(keeps_blocks, leaves_nothing)},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "The blocks' all-reduces, one for the embedding, one for the head; nothing as large as logits.",
            "logits were gathered",
            {
                "values": every(
                    SENDS,
                    sends_in(INFERENCE, calls_of_model("forward"), ignore=numbers_a_token),
                ),
                "modes": where_whole(NO_OTHERS),
            },
            dict.fromkeys(("layout", "untied", "uneven-vocabulary", "round-trip"), where_whole(SENDS)),
        ),
        Property(
            "untied",
            "numbers",
            2,
            "A head of its own works.",
            "head_weight must be cut by rows of the vocabulary, and used",
            {"untied": EVERYTHING},
        ),
        Property(
            "uneven-vocabulary",
            "robustness",
            2,
            "So do vocabularies that do not divide.",
            "padded columns in the loss",
            {"uneven-vocabulary": EVERYTHING},
        ),
        Property(
            "sequence-parallel",
            "numbers",
            3,
            "With tokens divided it is still the same model, and between table and head a rank has its own"
            " tokens only.",
            "positions and final norm see this rank's tokens only: send them through f, and take the slice",
            {
                "sequence-parallel": every(
                    EVERYTHING,
                    adds_to_gradients,
                    sends_in("forward", calls_if_divided("forward"), ignore=numbers_a_token),
                ),
                "kept": divided_between,
                "modes": where_divided(every(right_gradients, NO_OTHERS_DIVIDED)),
            },
        ),
        Property(
            "round-trip",
            "numbers",
            2,
            "to_full gives the state dict of the trained Transformer.",
            "the table with its padding",
            {"round-trip": comes_back},
        ),
        Property(
            "dropout",
            "mechanism",
            1,
            "With dropout, losses and whole gradients agree on all ranks, blocks drop apart, evaluation drops"
            " nothing.",
            "the wrong stream",
            {"dropout": DROPS_AS_ONE_MODEL},
        ),
        Property(
            "refusals",
            "robustness",
            1,
            "Tokens that do not divide are a ValueError that names both sizes.",
            "chunk is silent",
            {"refused": is_refused("refusal", "ValueError", names=refused_sizes)},
        ),
        any_layout(EVERYTHING),
        in_modes_too(own_share("layout", "untied", "uneven-vocabulary", "sequence-parallel", "round-trip")),
        Property("own-parts", "numbers", 2, OWN_PARTS, OWN_PARTS_CAUSE, {"own-parts": EVERYTHING}),
    ),
    builds_on=(ATTENTION_ID, EMBEDDING_ID, LOSS_ID, STREAMS_ID, PAIR_ID, PRODUCTS_ID, BLOCK_ID),
    forbids=TORCHS_OWN,
)
