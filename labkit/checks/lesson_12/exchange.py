"""What sending rows to the ranks of their experts must show: uneven splits, there and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_12.counts import (
    has_table,
    keeps_counts,
    keeps_first_table,
    one_message_of_counts,
    tell_counts,
)
from labkit.checks.lesson_12.handed import turned
from labkit.checks.lesson_12.sent import BACK, THERE, keeps_nothing_of_many, sends, tell_left_of_many
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import on_each, same, stays_in_group
from labkit.checks.shared.company import on_each_in_company
from labkit.checks.shared.holding import holding
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.left import left_since
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.split import drawn
from labkit.torch_private import tree_iter

EXCHANGE_ID = "12.all-to-all"
CROSSED = [[0, 3], [1, 2]]
TIMES = 10  # so often the second of two calls counts in a sum
SPLITS_BYTES = 16  # of what goes to a rank and what comes from it


def exchange_case(
    name: str, kind: str, ranks: int, local: int, hidden: int, most: int, seed: int, **params: Any
) -> Case:
    """local: experts of a rank. most: rows of a rank for an expert. silent, deaf: the ranks that send
    nothing, and that get nothing. still: those whose rows get gradients of zero. blank: those whose rows are
    zeros. late: the ranks that come last to what is recorded. whole: the dtype of counts, default int64.
    beside: so many are added to each count. columns: views are columns of a wider matrix, and not a matrix
    stored column after column.
    """
    return Case(name, ranks, {"local": local, "hidden": hidden, "most": most, **params}, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    return [
        exchange_case("counts of three", "counts", 3, 2, 3, 5, seed, late=[1]),
        exchange_case("counts of four", "counts", 4, 3, 4, 3, seed),
        exchange_case("counts in int32", "counts", 2, 2, 4, 3, seed, whole="int32"),
        exchange_case("three ranks", "values", 3, 2, 4, 3, seed, late=[2]),
        exchange_case("four ranks, bfloat16", "values", 4, 1, 5, 4, seed, dtype="bfloat16"),
        exchange_case("there and back, then backward", "twice", 3, 1, 4, 3, seed),
        exchange_case(
            "one is silent, one gets nothing", "idle", 3, 2, 4, 3, seed, silent=[2], deaf=[0], still=[1]
        ),
        exchange_case("rows that do not lie together", "strided", 3, 1, 6, 4, seed),
        exchange_case("crossed groups", "subgroup", 4, 2, 3, 4, seed, groups=CROSSED),
        exchange_case("alone", "alone", 1, 3, 3, 4, seed),
    ]


def drawn_counts(case: Case, generator: torch.Generator, members: int) -> Tensor:
    """[members, members, local]: rows of each rank for each expert of each rank; no two ways are alike."""
    local, most = case.params["local"], case.params["most"]
    counts = torch.randint(1, most + 1, (members, members, local), generator=generator)
    ranks = torch.arange(members)
    counts += ((ranks.unsqueeze(0) - ranks.unsqueeze(1)) % max(members, 1)).unsqueeze(-1)
    counts[case.params.get("silent", [])] = 0
    counts[:, case.params.get("deaf", [])] = 0
    return counts


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each rank NAME.RANK: counts [E] of its rows for each expert, sent and received [members], its rows,
    and the gradient of what it receives.
    """
    inputs: Inputs = {}
    whole = getattr(torch, case.params.get("whole", "int64"))
    for members in groups_of(case):
        counts = drawn_counts(case, generator, len(members))
        between = counts.sum(-1)
        for position, rank in enumerate(members):
            own = {
                "counts": counts[position].flatten().to(whole),
                "sent": between[position],
                "received": between[:, position],
                "rows": drawn(case, generator, int(between[position].sum()), case.params["hidden"]),
                "grad": drawn(case, generator, int(between[:, position].sum()), case.params["hidden"]),
            }
            for name, ranks in (("grad", "still"), ("rows", "blank")):
                if rank in case.params.get(ranks, []):
                    own[name].zero_()
            inputs |= {f"{name}.{rank}": tensor.clone() for name, tensor in own.items()}
    return inputs


def _count_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each rank counts.RANK, of rows that nobody sends."""
    counts = drawn_counts(case, generator, case.ranks) + case.params.get("beside", 0)
    whole = getattr(torch, case.params.get("whole", "int64"))
    return {f"counts.{rank}": own.flatten().to(whole) for rank, own in enumerate(counts)}


def own_names(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """A rank is handed what ends in its number."""
    return {name.rpartition(".")[0]: tensor for name, tensor in inputs.items() if name.endswith(f".{rank}")}


def _exchange_counts(rank: Rank) -> None:
    """What `tell_counts` does."""
    tell_counts(rank, enter_group(rank))


def _exchange(rank: Rank) -> None:
    """Answers out, grad, and "grad again", half of what a second backward with twice the gradient gives;
    recordings forward and backward, both times; facts kept: bytes of tensors kept for backward and larger
    than splits, be it by a view of nothing; beside: bytes of all else that is kept, beside what came.
    """
    _send(rank, enter_group(rank))


def _send(rank: Rank, group: Any) -> None:
    leaf = rank.inputs["rows"].clone().requires_grad_()
    sent, received = (rank.inputs[name].tolist() for name in ("sent", "received"))
    before = holding()
    with rank.recording("forward"):
        out = rank.student.AllToAll.apply(leaf, sent, received, group)
    own = sum(received) * leaf.shape[1] * leaf.element_size()
    enough = own + SPLITS_BYTES * len(sent)
    rank.fact("beside", left_since(before, enough) - own)
    rank.answer("out", out)
    node = out.grad_fn
    held = tree_iter([getattr(node, "saved_tensors", ()), getattr(node, "__dict__", {})])
    storages = [(t.untyped_storage().nbytes(), t.is_floating_point()) for t in held if isinstance(t, Tensor)]
    rank.fact("kept", sum(size for size, real in storages if real or size > SPLITS_BYTES * len(sent)))
    if "groups" in rank.params:  # between the two, a call of everybody, in another dtype
        nobody = [0] * rank.case.ranks
        rank.student.AllToAll.apply(leaf[:0].half(), nobody, nobody, rank.group)
    with rank.attempt("gradients"):
        with rank.recording("backward"):
            (out * rank.inputs["grad"]).sum().backward(retain_graph=True)
        rank.answer("grad", leaf.grad)
        with rank.recording("backward"):
            (again,) = torch.autograd.grad(out, leaf, 2.0 * rank.inputs["grad"])
        rank.answer("grad again", again / 2.0)


def _strided(rank: Rank) -> None:
    """Rows and gradients as views of other tensors. Answers out, grad; recordings forward and backward."""
    group = enter_group(rank)
    rows, grad = rank.inputs["rows"], rank.inputs["grad"]
    columns = "columns" in rank.params
    leaf = (rows.repeat(1, 2)[:, : rows.shape[1]] if columns else turned(rows)).requires_grad_()
    sent, received = (rank.inputs[name].tolist() for name in ("sent", "received"))
    with rank.recording("forward"):
        out = rank.student.AllToAll.apply(leaf, sent, received, group)
    rank.answer("out", out)
    with rank.recording("backward"):
        if columns:
            (torch.cat([out, out.detach()], dim=1) * grad.repeat(1, 2)).sum().backward()
        else:
            (out.t() * grad.t().contiguous()).sum().backward()
    rank.answer("grad", leaf.grad)


def _there_and_back(rank: Rank) -> None:
    """As a layer does: rows there, what became of them back, and backward through both. Answers out, grad and
    what `_twice_alike` does; recordings forward, home and both backward; facts of many rows.
    """
    group = enter_group(rank)
    leaf = rank.inputs["rows"].clone().requires_grad_()
    sent, received = (rank.inputs[name].tolist() for name in ("sent", "received"))
    with rank.recording("forward"):
        there = rank.student.AllToAll.apply(as_inside(leaf), sent, received, group)
    with rank.recording("home"):
        home = rank.student.AllToAll.apply(there * rank.inputs["grad"], received, sent, group)
    rank.answer("out", home)
    with rank.recording("both backward"):
        home.square().sum().backward()
    rank.answer("grad", leaf.grad)
    _twice_alike(rank, group, sent, received)
    tell_left_of_many(rank, group, sent, received)


def _twice_alike(rank: Rank, group: Any, sent: list[int], received: list[int]) -> None:
    """Two calls with the same splits. Answers first and "first again", without a graph: what the earlier one
    gave, read when both are over; shared: the gradient of rows that went through two. Recordings forward, of
    each call, and alike backward.
    """
    leaf = rank.inputs["rows"].clone().requires_grad_()

    def send(rows: Tensor) -> Tensor:
        with rank.recording("forward"):
            out: Tensor = rank.student.AllToAll.apply(rows, sent, received, group)
        return out

    one, other = send(leaf), send(leaf)
    send(2 * leaf)
    rank.answer("first", one)
    with rank.recording("alike backward"):
        ((one + TIMES * other) * rank.inputs["grad"]).sum().backward()
    rank.answer("shared", leaf.grad)
    with torch.no_grad():
        again, _ = (send(times * leaf.detach()) for times in (1, 2))
    rank.answer("first again", again)


def _both(rank: Rank) -> None:
    """What `_exchange_counts` and `_exchange` do."""
    group = enter_group(rank)
    tell_counts(rank, group)
    _send(rank, group)


# -- judges


def _exchanged(evidence: Evidence, answer: RankAnswer, what: str, splits: str) -> Tensor:
    """What comes to a rank when every rank cuts its own `what` by its own `splits`."""
    place = place_of(evidence.case, answer.rank)
    parts = [
        evidence.inputs[f"{what}.{rank}"].split(evidence.inputs[f"{splits}.{rank}"].tolist())[place.position]
        for rank in place.members
    ]
    return torch.cat(parts)


def _rows(evidence: Evidence, answer: RankAnswer) -> Finding:
    expected = _exchanged(evidence, answer, "rows", "sent")
    return same("rows of all ranks for this one, in the order of the ranks", expected, answer, "out")


def _gradients(evidence: Evidence, answer: RankAnswer) -> Finding:
    expected = _exchanged(evidence, answer, "grad", "received")
    return same("gradients of this rank's rows, back from where they went", expected, answer, "grad")


def _gradients_again(evidence: Evidence, answer: RankAnswer) -> Finding:
    expected = _exchanged(evidence, answer, "grad", "received")
    return same("gradients of a second backward through one graph", expected, answer, "grad again")


def _home(evidence: Evidence) -> Iterator[Finding]:
    """Each row r comes back as r x g, and what g was is known from where the row went."""
    for answer in evidence.answers:
        rows = evidence.inputs[f"rows.{answer.rank}"]
        factors = _exchanged(evidence, answer, "grad", "received")
        yield same("this rank's rows, there and back", rows * factors, answer, "out")
        gradient = 2 * rows * factors.square()
        yield same("gradients of this rank's rows, through both calls", gradient, answer, "grad")
        gradient = (1 + TIMES) * factors
        told = f"gradients of rows that two calls sent, of which the second counts {TIMES} times"
        yield same(told, gradient, answer, "shared")


def _first_rows(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        expected = _exchanged(evidence, answer, "rows", "sent")
        told = "what a call gave, read after another one with the same splits"
        yield same(told, expected, answer, "first")
        yield same(f"{told}, both without a graph", expected, answer, "first again")


def _keeps_no_rows(evidence: Evidence, answer: RankAnswer) -> Finding:
    kept, beside = answer.facts["kept"], answer.facts["beside"]
    few = beside <= SPLITS_BYTES * len(evidence.inputs[f"sent.{answer.rank}"])
    seen = f"tensors of {kept:,} bytes, {beside:,} bytes beside what came"
    return Finding(not kept and few, "nothing kept for backward but the splits", seen, answer.rank)


COUNTS = Run(_exchange_counts, _count_inputs, own_names)
ROWS = Run(_exchange, _inputs, own_names)
BOTH = Run(_both, _inputs, own_names)
NUMBERS = every(has_table, on_each(_rows), on_each(_gradients))
ROWS_SENT = every(sends("forward", THERE), sends("backward", BACK))
ROWS_ALONE = every(ROWS_SENT, on_each(_keeps_no_rows))
ROWS_TWICE = every(
    sends("forward", THERE),
    sends("home", BACK),
    sends("both backward", THERE, BACK),
    sends("alike backward", BACK, BACK),
    on_each_in_company(keeps_nothing_of_many),
)
EXERCISE = Exercise(
    EXCHANGE_ID,
    "Rows to the ranks of their experts",
    ("exchange_counts", "AllToAll"),
    {
        "counts": COUNTS,
        "values": ROWS,
        "twice": Run(_there_and_back, _inputs, own_names),
        "idle": BOTH,
        "strided": Run(_strided, _inputs, own_names),
        "subgroup": BOTH,
        "alone": BOTH,
    },
    _cases,
    (
        Property(
            "counts",
            "numbers",
            2,
            "Each rank learns how many rows every rank has for each of its experts.",
            "rows and columns exchanged: the first dimension is the rank they come from",
            {"counts": every(has_table, keeps_first_table, keeps_counts)},
        ),
        Property(
            "counts-message",
            "mechanism",
            1,
            "Counts are told in one all-to-all of one number for each expert.",
            "an all-gather tells everybody everything",
            {"counts": one_message_of_counts},
            {"idle": one_message_of_counts, "subgroup": one_message_of_counts},
        ),
        Property(
            "rows",
            "numbers",
            2,
            "Each rank has the rows that are for it, in the order of the ranks.",
            "the sizes of what goes and of what comes change places: the output's come first",
            {"values": on_each(_rows), "twice": _first_rows},
        ),
        Property(
            "gradients",
            "numbers",
            2,
            "Each row's gradient comes back to it, also where another call came between.",
            "what was received is sent now: the splits change places; each call has its own",
            {"values": every(on_each(_gradients), on_each(_gradients_again)), "twice": _home},
        ),
        Property(
            "messages",
            "mechanism",
            2,
            "One all-to-all each way, of the rows there are and no padding; no rows are kept.",
            "rows padded to the same number for everybody",
            {"values": ROWS_ALONE},
            {"idle": ROWS_ALONE, "subgroup": ROWS_ALONE, "strided": ROWS_SENT, "twice": ROWS_TWICE},
        ),
        Property(
            "idle",
            "robustness",
            1,
            "A rank may have nothing to send, another may get nothing, and a third gradients of zero.",
            "a rank without rows, or with gradients of zero, leaves out the call that the others wait in",
            {"idle": NUMBERS},
        ),
        Property(
            "strided",
            "robustness",
            1,
            "Rows and gradients may be views that do not lie together in memory.",
            ".contiguous() before the call, in backward as well",
            {"strided": every(on_each(_rows), on_each(_gradients))},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, with a call in another group before backward, and"
            " on one rank alone.",
            "the call was made without group=, or in the group of the last call",
            {"subgroup": every(NUMBERS, stays_in_group), "alone": NUMBERS},
        ),
    ),
)
