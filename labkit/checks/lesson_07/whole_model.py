"""What `07.tensor-parallel-gpt` must show: the whole model, its loss and its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Exercise, Finding, Property, Run, every
from labkit.checks.lesson_07.attention import ATTENTION_ID
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
    modes_changed,
    modes_of,
    own_share,
    ranks_agree,
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
from labkit.checks.shared.beside import is_refused, same
from labkit.checks.shared.cuts import cut_gpt
from labkit.checks.shared.dropped import drops_as_asked, note_dropped
from labkit.checks.shared.places import enter_group
from labkit.checks.shared.split import (
    Drawn,
    Split,
    SplitEvidence,
    dtype_of,
    loaded,
    under,
    use_part,
    use_views,
)
from labkit.checks.shared.split_judges import EVERYTHING, equals, keeps_blocks, sends_in
from labkit.checks.shared.surroundings import gives_in_evaluation, leaves_the_whole, use_beside_another
from labkit.model import Transformer, explicit_attention

GPT_ID = "07.tensor-parallel-gpt"
OTHER_SEEDS = 1, 2


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
        gpt_case("6 tokens a sequence", "refused", 4, seed, sequence=6, sequence_parallel=True, names=[6, 4]),
    ]


def _watch_dropout(rank: Rank, split: Split) -> None:
    """Answers: first loss, second loss, the gradient of positions, the loss in evaluation, and for each block
    as "left N" where it left x as it was, in the second forward. Of what enters the first block: entered, in
    some calls in training without gradients, after the one in evaluation, and expected, the same from what
    enters it in evaluation.
    Fact: modes, what is in another mode in the whole model afterwards. Answers of other models: "same seed",
    the first loss of one of the same seed, and "other seeds", of two of others.

    The part is made of a model in evaluation, as its own mode is what counts.
    """
    full = split.handed(rank).eval()
    before = modes_of(full)
    part = split.build(rank, full, rank.group).train()
    left: dict[str, Tensor] = {}
    for number, block in enumerate(part.get_submodule("blocks").children()):
        block.register_forward_hook(partial(_note_what_is_left, left, f"left {number}"))
    for name in ("first", "second"):
        part.zero_grad()
        loss = split.use(part, [rank.inputs["ids"], rank.inputs["targets"]])
        loss.backward()
        rank.answer(f"{name} loss", loss)
    rank.answer("positions", dict(part.named_parameters())["positions"].grad)
    for name, tensor in left.items():
        rank.answer(name, tensor)
    rank.fact("modes", modes_changed(before, full))
    once = partial(split.use, part, [rank.inputs["ids"], rank.inputs["targets"]])
    part.eval()
    rank.answer("evaluated", once())
    note_dropped(rank, part, rank.params["dropout"], once)
    rank.answer("same seed", _first_loss(rank, split, full, 0))
    rank.answer("other seeds", torch.stack([_first_loss(rank, split, full, more) for more in OTHER_SEEDS]))


@torch.no_grad()
def _first_loss(rank: Rank, split: Split, full: nn.Module, more: int) -> Tensor:
    """What a model in training gives first; more: of the seed than in the case."""
    seed = rank.case.seed + more
    part = rank.student.TensorParallelGPT.from_full(full, rank.group, seed, sequence_parallel(rank.case))
    return split.use(part.train(), [rank.inputs["ids"], rank.inputs["targets"]])


def _note_what_is_left(
    left: dict[str, Tensor], name: str, block: nn.Module, given: tuple[Tensor, ...], out: Tensor
) -> None:
    left[name] = (out == given[0]).detach()


def _divide_uneven_tokens(rank: Rank, split: Split) -> None:
    """Fact: refusal."""
    part = split.build(rank, split.plain(rank.case).to(rank.device), enter_group(rank))
    with rank.expect_error("refusal"):
        split.use(part, [rank.inputs["ids"], rank.inputs["targets"]])


def _other_loss_each_time(evidence: SplitEvidence) -> Iterator[Finding]:
    first, second = (evidence.answers[0].tensors[f"{n} loss"] for n in ("first", "second"))
    yield Finding(not torch.equal(first, second), "another loss each time", "the same", 0)


def _by_its_seed(evidence: SplitEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        first, others = answer.tensors["first loss"], answer.tensors["other seeds"]
        yield same("the first loss of a model of the same seed", first, answer, "same seed")
        alike = len(torch.cat([first.view(1), others.view(-1)]).unique()) <= len(others)
        yield Finding(not alike, "other losses of models of other seeds", "the same", answer.rank)


def _blocks_drop_apart(evidence: SplitEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        one, two = (answer.tensors.get(f"left {number}") for number in (0, 1))
        if one is not None and two is not None:
            told = "other places dropped by the second block than by the first"
            yield Finding(not torch.equal(one, two), told, "the same places", answer.rank)


def _drops_without_gradients(evidence: SplitEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        yield from drops_as_asked(answer, evidence.case.params["dropout"])


def _drops_others_each_time(evidence: SplitEvidence) -> Iterator[Finding]:
    """Each of the calls drops other numbers of what enters the first block."""
    for answer in evidence.answers:
        first, *later = (answer.tensors["entered"] == 0).unbind()
        again = sum(torch.equal(first, dropped) for dropped in later)
        told = "other numbers of the vectors dropped in each call"
        yield Finding(not again, told, f"those of the first {again} times more", answer.rank)


def _drops_nothing_in_evaluation(evidence: SplitEvidence) -> Iterator[Finding]:
    full = loaded(evidence.split.plain(evidence.case), under("full.", evidence.inputs)).eval()
    with torch.no_grad():
        loss = evidence.split.use(full, [evidence.inputs[name][0] for name in evidence.split.arguments])
    for answer in evidence.answers:
        yield same("the whole model's loss after eval()", loss, answer, "evaluated")


def _own_tokens_drop_apart(evidence: SplitEvidence) -> Iterator[Finding]:
    """Where tokens are divided, each rank drops other places of its own: the gradient of positions is zero
    where a single sequence was dropped.
    """
    if not sequence_parallel(evidence.case):
        return
    gradient = evidence.answers[0].tensors["positions"][: evidence.case.params["sequence"]]
    first, second = (half == 0 for half in gradient.chunk(evidence.case.ranks)[:2])
    alike = (first == second).double().mean().item()
    told = "other places of rank 1's tokens dropped than of rank 0's"
    yield Finding(alike < 0.9, told, f"{alike:.0%} of the places are the same", 1)


def _begin_alike(run: Run) -> Run:
    """The run in which, where the case says so, an untied head begins as a copy of the table."""

    def inputs(case: Case, generator: torch.Generator) -> Inputs:
        found = run.inputs(case, generator)
        if case.params.get("head_as_table"):
            found |= {f"{kind}.head.weight": found[f"{kind}.tokens.weight"] for kind in ("full", "noise")}
        return found

    return replace(run, inputs=inputs)


_WITH_DROPOUT = {
    "first loss": "the first loss with dropout",
    "second loss": "the second loss with dropout",
    "positions": "the gradient of positions",
}
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
        "dropout": at_boundaries(GPT.run(_watch_dropout)),
        "modes": at_boundaries(GPT.run(use_in_every_mode)),
        "again": at_boundaries(GPT.run(partial(use_beside_another, other=GPT))),
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
            {
                "dropout": every(
                    ranks_agree(_WITH_DROPOUT),
                    _other_loss_each_time,
                    _by_its_seed,
                    _own_tokens_drop_apart,
                    _blocks_drop_apart,
                    _drops_without_gradients,
                    _drops_others_each_time,
                    _drops_nothing_in_evaluation,
                )
            },
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
