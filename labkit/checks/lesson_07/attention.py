"""What `07.tensor-parallel-attention` must show: heads over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Finding, Property, every
from labkit.checks.lesson_07.modes import (
    gives_inside,
    in_modes_too,
    leaves_nothing,
    right_gradients,
    sends_at_most,
    use_in_every_mode,
)
from labkit.checks.lesson_07.modules import (
    GRADIENTS,
    INFERENCE,
    PAIRS,
    STORED,
    TORCHS_OWN,
    TRAINED,
    activations,
    any_layout,
    case_maker,
    comes_back,
    config_of,
    infers_as_trained,
    one_all_reduce,
    own_share,
    refused_sizes,
    subgroup,
    use_and_infer,
    use_and_return,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import Call, is_refused, same, stays_in_group
from labkit.checks.shared.cuts import cut_attention
from labkit.checks.shared.split import Split, SplitEvidence, dtype_of, impossible, use_part, use_views
from labkit.checks.shared.split_judges import (
    EVERYTHING,
    equals,
    keeps_blocks,
    makes_its_share,
    sends,
    sends_in,
)
from labkit.checks.shared.surroundings import gives_in_evaluation, leaves_the_whole, use_beside_another
from labkit.model import Attention, explicit_attention

ATTENTION_ID = "07.tensor-parallel-attention"
ATTENTION = Split(
    plain=lambda case: Attention(config_of(case), explicit_attention).to(dtype_of(case)),
    build=lambda rank, full, group: rank.student.TensorParallelAttention.from_attention(full, group),
    cut=cut_attention,
    drawn=activations,
)
MODES_OF = {"batch": 4, "sequence": 8, "hidden": 24}
attention_case = case_maker(batch=2, sequence=5, hidden=12, heads=4)


def _cases(seed: int) -> list[Case]:
    return [
        attention_case("4 heads of 5", "values", 2, seed, head_size=5),
        attention_case(
            "grouped-query, 4 key-value heads", "grouped", 2, seed, heads=8, kv_heads=4, hidden=16
        ),
        attention_case(
            "other head size, no output bias", "grouped", 2, seed, kv_heads=2, head_size=5, biases="qkv"
        ),
        attention_case("views", "layout", 2, seed),
        attention_case("dropout", "dropout", 2, seed, dropout=0.3, heads=8, kv_heads=4, hidden=16),
        attention_case("other products", "products", 2, seed),
        attention_case("in every mode", "modes", 2, seed, **MODES_OF, dtype="float32"),
        attention_case("in every mode, with dropout", "modes", 2, seed, **MODES_OF, dropout=0.2),
        attention_case("in every mode, other products", "modes", 2, seed, **MODES_OF, wrapped=True),
        attention_case("back to one", "round-trip", 2, seed, kv_heads=2),
        attention_case("back to one, in pairs", "round-trip", 4, seed, kv_heads=2, groups=PAIRS),
        attention_case("back to one, without output bias", "round-trip", 2, seed, biases="qkv"),
        attention_case("back to one, without biases", "round-trip", 2, seed, biases="none"),
        attention_case("8 heads", "values", 4, seed, heads=8, hidden=16, batch=3),
        attention_case("grouped-query, 8 heads for 4", "grouped", 4, seed, heads=8, kv_heads=4, hidden=16),
        attention_case("6 heads", "refused", 4, seed, heads=6, names=[6, 4]),
        attention_case("2 key-value heads", "refused", 4, seed, heads=8, hidden=16, kv_heads=2, names=[2, 4]),
        attention_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
        attention_case("beside one of some ranks", "again", 4, seed, batch=1),
    ]


def _watch_attend(rank: Rank, split: Split) -> None:
    """Facts: asked, with which probability of dropout heads attend: as made of a whole one in evaluation, in
    evaluation, and in training without gradients; heads, the shapes of queries, keys and values each time.
    """
    full, asked, heads = split.handed(rank), [], []
    plain = full.attend

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        asked.append(float(dropout))
        heads.append([list(t.shape) for t in (q, k, v)])
        return plain(q, k, v, 0.0)  # type: ignore[operator]

    full.attend = attend  # type: ignore[assignment]
    part = split.build(rank, full.eval(), rank.group)
    part(rank.inputs["x"].clone())
    part.eval()(rank.inputs["x"].clone())
    with torch.no_grad():
        part.train()(rank.inputs["x"].clone())
    rank.fact("asked", asked)
    rank.fact("heads", heads)


def _use_other_products(rank: Rank, split: Split) -> None:
    """Hand in an `enter` that doubles what enters, and lets it in twice, one after the other, and a `leave`
    that triples what leaves of the first. Answers: others, and usual, three times what the usual products
    make of twice x. Recordings of the others: forward, backward.
    """
    from labkit.tensor_parallel import column_parallel, row_parallel

    def enter(x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup) -> Tensor:
        return column_parallel(torch.cat([2 * x, 2 * x], dim=1), weight, bias, group)

    def leave(x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup) -> Tensor:
        return 3 * row_parallel(x[:, : x.shape[1] // 2], weight, bias, group)

    part_of, full, x = (
        rank.student.TensorParallelAttention.from_attention,
        split.handed(rank),
        rank.inputs["x"],
    )
    others = part_of(full, rank.group, enter=enter, leave=leave)
    with rank.recording("forward"):
        out = others(x.clone().requires_grad_())
    with rank.recording("backward"):
        out.sum().backward()
    rank.answer("others", out)
    rank.answer("usual", 3 * part_of(full, rank.group)(2 * x))


def _from_attention(rank: Rank, full: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """The student's part; where the case says "wrapped", of products that are others, but do the same."""
    from labkit.tensor_parallel import column_parallel, row_parallel

    others = {}
    if rank.params.get("wrapped"):
        others = {"enter": partial(column_parallel), "leave": partial(row_parallel)}  # by keyword, too
    return rank.student.TensorParallelAttention.from_attention(full, group, **others)


def _twice_as_many_tokens(evidence: SplitEvidence) -> list[Call]:
    """In backward of products that let in x twice: one sum, of as many numbers."""
    return [("all_reduce", 2 * evidence.bytes_of("x"))]


def _uses_what_is_handed(evidence: SplitEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        told = "what `enter` and `leave` make of it, whatever functions they are"
        yield same(told, answer.tensors["usual"], answer, "others")


def _attends_with_dropout(evidence: SplitEvidence) -> Iterator[Finding]:
    dropout = evidence.case.params["dropout"]
    expected = [dropout, 0.0, dropout]
    for answer in evidence.answers:
        seen = answer.facts["asked"]
        told = (
            f"heads attend with dropout {dropout} in training, as a part begins, under no_grad too, and 0.0"
            " in evaluation"
        )
        yield Finding(seen == expected, told, f"{seen}", answer.rank)


def _attends_with_own_heads(evidence: SplitEvidence) -> Iterator[Finding]:
    case, config = evidence.case, config_of(evidence.case)
    rest = [case.params["sequence"], config.head_size]
    counts = [number // case.ranks for number in (config.num_heads, config.num_kv_heads)]
    query, key = ([case.params["batch"], count, *rest] for count in counts)
    told = f"queries {query}, keys and values {key} at `attend`: no head twice"
    for answer in evidence.answers:
        seen = answer.facts["heads"]
        yield Finding(all(shapes == [query, key, key] for shapes in seen), told, f"{seen[:1]}", answer.rank)


_SENDS_OF_OTHERS = every(sends_in("forward", one_all_reduce), sends_in("backward", _twice_as_many_tokens))
EXERCISE = Exercise(
    ATTENTION_ID,
    "Heads over ranks",
    ("TensorParallelAttention",),
    {
        "values": ATTENTION.run(use_and_infer),
        "dropout": ATTENTION.run(_watch_attend),
        "products": ATTENTION.run(_use_other_products),
        "modes": replace(ATTENTION, build=_from_attention).run(use_in_every_mode),
        "grouped": ATTENTION.run(use_part),
        "round-trip": ATTENTION.run(use_and_return),
        "layout": ATTENTION.run(use_views),
        "refused": impossible(ATTENTION),
        "subgroup": ATTENTION.run(use_part),
        "again": ATTENTION.run(partial(use_beside_another, other=ATTENTION)),
    },
    _cases,
    (
        Property(
            "forward-values",
            "numbers",
            3,
            "Every rank's output is that of the whole attention, by way of `enter` and `leave`; heads attend"
            " with its dropout, in training.",
            "the packed weight was cut in one piece, so that rank 0 has all queries and the last rank all"
            " values; or heads were read as [d, heads] instead of [heads, d]",
            {
                "values": equals("output"),
                "again": gives_in_evaluation,
                "products": _uses_what_is_handed,
                "dropout": _attends_with_dropout,
            },
            {"modes": gives_inside("output")},
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            "Every rank's gradient of x is that of the whole attention.",
            "x did not enter through `enter`, which sums its gradient in backward",
            dict.fromkeys(("values", "again"), equals("input_grad")),
            {"modes": gives_inside("input_grad")},
        ),
        Property(
            "parameter-gradients",
            "numbers",
            2,
            GRADIENTS,
            "a block was detached, or a collective stands between the two products",
            dict.fromkeys(("values", "again"), equals("grad")),
            {"modes": right_gradients},
        ),
        Property(
            "trained-weights",
            "numbers",
            1,
            TRAINED,
            "forward computes from something else than the four parameters",
            {"values": every(equals("trained"), infers_as_trained)},
        ),
        Property(
            "grouped-query",
            "numbers",
            3,
            "It works with fewer key-value heads than heads, and with any head size.",
            "keys and values have k / t heads on a rank, not a / t; the head size is config.head_size",
            {"grouped": EVERYTHING, "dropout": _attends_with_own_heads},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "One all-reduce of b s h numbers in forward, one in backward.",
            "heads were gathered before the output projection",
            {
                "values": every(sends(one_all_reduce, one_all_reduce), sends_in(INFERENCE, one_all_reduce)),
                "modes": sends_at_most(one_all_reduce, one_all_reduce),
            },
            dict.fromkeys(
                ("layout", "grouped", "round-trip", "subgroup"), sends(one_all_reduce, one_all_reduce)
            )
            | {"products": _SENDS_OF_OTHERS},
        ),
        Property(
            "stored-shards",
            "mechanism",
            2,
            STORED,
            "the output bias is whole; the packed weight is [(a + 2k) d / t, h]",
            {"values": keeps_blocks, "again": leaves_the_whole},
            dict.fromkeys(("layout", "grouped", "round-trip", "subgroup"), keeps_blocks)
            | {"modes": every(keeps_blocks, leaves_nothing)},
        ),
        Property(
            "round-trip",
            "numbers",
            2,
            "to_full gives the state dict of the whole attention, after training too.",
            "queries, keys and values are packed by rank: split a rank's block before joining the ranks'",
            {"round-trip": comes_back},
        ),
        Property(
            "refusals",
            "robustness",
            1,
            "Heads, or key-value heads, that do not divide among the ranks are a ValueError that names both.",
            "heads // t drops the rest, and 2 // 4 leaves none",
            {"refused": is_refused("refusal", "ValueError", names=refused_sizes)},
        ),
        any_layout(EVERYTHING),
        in_modes_too(own_share("layout", "grouped", "round-trip", "subgroup", besides=makes_its_share)),
        subgroup(every(equals("output"), stays_in_group)),
    ),
    forbids=TORCHS_OWN,
)
