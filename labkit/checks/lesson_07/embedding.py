"""What `07.vocab-parallel-embedding` must show: rows of the vocabulary over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Finding, Property, every
from labkit.checks.lesson_07.modules import (
    GRADIENTS,
    INFERENCE,
    PAIRS,
    STORED,
    TORCHS_OWN,
    TRAINED,
    any_layout,
    at_boundaries,
    case_maker,
    comes_back,
    fewer_tokens,
    infers_as_trained,
    no_calls,
    one_all_reduce,
    subgroup,
    use_and_infer,
    use_and_return,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import is_refused, same, stays_in_group
from labkit.checks.shared.cuts import cut_table
from labkit.checks.shared.split import Drawn, Split, SplitEvidence, dtype_of, use_part, use_views
from labkit.checks.shared.split_judges import EVERYTHING, equals, keeps_blocks, sends, sends_in
from labkit.checks.shared.surroundings import gives_in_evaluation, leaves_the_whole, use_beside_another

EMBEDDING_ID = "07.vocab-parallel-embedding"
UNTRAINED = "nothing trained"  # a call in training of a table that is frozen, as it is recorded and told
WRONG_IDS = "too large", "negative", "too large in evaluation", "negative in evaluation"


def _drawn(case: Case) -> dict[str, Drawn]:
    lead = (case.params["batch"], case.params["sequence"])
    ids = Drawn(lead, below=case.params["vocabulary"], later=(lead[0], fewer_tokens(case)))
    return {"ids": ids, "grad_output": Drawn((*lead, case.params["hidden"]))}


EMBEDDING = Split(
    plain=lambda case: nn.Embedding(case.params["vocabulary"], case.params["hidden"], dtype=dtype_of(case)),
    build=lambda rank, full, group: rank.student.VocabParallelEmbedding.from_embedding(full, group),
    cut=cut_table,
    drawn=_drawn,
    arguments=("ids",),
)
embedding_case = case_maker(batch=2, sequence=5, hidden=3, vocabulary=12)


def _cases(seed: int) -> list[Case]:
    return [
        embedding_case("12 tokens", "values", 2, seed, sequence=40, late=[1]),
        embedding_case("a single id, bfloat16", "values", 2, seed, batch=1, sequence=1, dtype="bfloat16"),
        embedding_case("ids that are a view", "layout", 2, seed),
        embedding_case("completed otherwise", "leave", 2, seed),
        embedding_case("11 tokens", "uneven", 2, seed, vocabulary=11),
        embedding_case("11 tokens, back to one", "round-trip", 2, seed, vocabulary=11),
        embedding_case("ids outside", "wrong-ids", 2, seed, vocabulary=11),
        embedding_case("12 tokens on more ranks", "values", 4, seed, sequence=7, hidden=5),
        embedding_case("5 tokens: a rank without any", "uneven", 4, seed, vocabulary=5),
        embedding_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
        embedding_case("beside one of some ranks", "again", 4, seed),
    ]


def _look_up_wrong_ids(rank: Rank, split: Split) -> None:
    """Ids that are right, and then, in the same tensor, wrong; in training, and in evaluation without
    gradients. Facts: WRONG_IDS.
    """
    part = split.build(rank, split.plain(rank.case).to(rank.device), rank.group)
    for training, names in ((True, WRONG_IDS[:2]), (False, WRONG_IDS[2:])):
        part.train(training)
        for name, place, wrong in zip(names, (-1, 0), (rank.params["vocabulary"], -1), strict=True):
            ids = rank.inputs["ids"].clone()
            with torch.set_grad_enabled(training):
                part(ids)
                ids[place, place] = wrong
                with rank.expect_error(name):
                    part(ids)


def _complete_otherwise(rank: Rank, split: Split) -> None:
    """Hand in a `leave` that triples, and keeps every second token, in training, and in evaluation without
    gradients. Answers: others and evaluated; usual, the same of what the usual one gives. Recordings: of all
    these, and of the usual one where nothing is trained.
    """
    from labkit.tensor_parallel import sum_over_ranks

    part_of, full, ids = (
        rank.student.VocabParallelEmbedding.from_embedding,
        split.handed(rank),
        rank.inputs["ids"],
    )
    usual = part_of(full, rank.group)
    others = part_of(full, rank.group, lambda partial, group: 3 * sum_over_ranks(partial, group)[:, ::2])
    with rank.recording("forward"):
        out = others(ids.clone())
    rank.answer("others", out)
    with rank.attempt("forward-values"), rank.recording("backward"):
        out.sum().backward()
    with torch.no_grad(), rank.recording(INFERENCE):
        rank.answer("evaluated", others.eval()(ids.clone()))
    rank.answer("usual", 3 * usual(ids.clone())[:, ::2])
    usual.requires_grad_(False)
    with rank.recording(UNTRAINED):
        usual(ids.clone())


def _uses_what_is_handed(evidence: SplitEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        told = "what `leave` makes of it, whatever function that is"
        for asked in ("others", "evaluated"):
            yield same(told, answer.tensors["usual"], answer, asked)


_USUAL = ("layout", "uneven", "round-trip", "subgroup", "again")  # cases beside "values"
_USED = at_boundaries(EMBEDDING.run(use_part))
EXERCISE = Exercise(
    EMBEDDING_ID,
    "Rows of the vocabulary over ranks",
    ("VocabParallelEmbedding",),
    {
        "values": at_boundaries(EMBEDDING.run(use_and_infer)),
        "layout": at_boundaries(EMBEDDING.run(use_views)),
        "leave": EMBEDDING.run(_complete_otherwise),
        "uneven": _USED,
        "round-trip": at_boundaries(EMBEDDING.run(use_and_return)),
        "wrong-ids": EMBEDDING.run(_look_up_wrong_ids),
        "subgroup": _USED,
        "again": at_boundaries(EMBEDDING.run(partial(use_beside_another, other=EMBEDDING))),
    },
    _cases,
    (
        Property(
            "forward-values",
            "numbers",
            3,
            "Every rank has the vectors of all ids, completed by `leave`.",
            "an id of another rank's block must give zeros before the sum, not a row of this block; the"
            " block's last row is still this rank's",
            {"values": equals("output"), "again": gives_in_evaluation, "leave": _uses_what_is_handed},
        ),
        Property(
            "parameter-gradients",
            "numbers",
            2,
            GRADIENTS,
            "ids of other ranks add to this rank's rows: mask the vectors, not only the ids",
            dict.fromkeys(("values", "again"), equals("grad")),
        ),
        Property(
            "trained-weights",
            "numbers",
            1,
            TRAINED,
            "the table is not an nn.Parameter",
            {"values": every(equals("trained"), infers_as_trained)},
        ),
        Property(
            "communication",
            "mechanism",
            4,
            "One all-reduce of b s h numbers in forward, nothing in backward.",
            "f in front, or the whole table gathered",
            {"values": every(sends(one_all_reduce, no_calls), sends_in(INFERENCE, one_all_reduce))},
            {
                **dict.fromkeys(_USUAL, sends(one_all_reduce, no_calls)),
                "leave": every(
                    sends(one_all_reduce, no_calls),
                    sends_in(INFERENCE, one_all_reduce),
                    sends_in(UNTRAINED, one_all_reduce),
                ),
            },
        ),
        Property(
            "stored-shards",
            "mechanism",
            2,
            STORED,
            "a slice is a view that keeps the whole table in memory: copy it",
            {"values": keeps_blocks, "again": leaves_the_whole},
            dict.fromkeys(("layout", "uneven", "subgroup"), keeps_blocks),
        ),
        Property(
            "uneven-vocabulary",
            "robustness",
            2,
            "Vocabularies that do not divide are filled with rows of zeros, and come back without them.",
            "every rank has ceil(V / t) rows; the last ranks may have fewer real ones, or none",
            {"uneven": EVERYTHING, "round-trip": comes_back},
        ),
        Property(
            "wrong-ids",
            "robustness",
            1,
            "An id outside the vocabulary is an IndexError on every rank.",
            "no rank owns such an id, so that its vector is silently zero",
            {"wrong-ids": every(*(is_refused(name, "IndexError") for name in WRONG_IDS))},
        ),
        any_layout(EVERYTHING),
        subgroup(every(equals("output"), stays_in_group)),
    ),
    forbids=TORCHS_OWN,
)
