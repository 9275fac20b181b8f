"""What `07.sequence-parallel-pair` must show: gather and scatter the sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every, own_entry
from labkit.checks.lesson_07.modules import PAIRS, TORCHS_OWN, group_alone, subgroup
from labkit.checks.rank import Rank
from labkit.checks.shared.again import first_of_two
from labkit.checks.shared.back_twice import back_twice
from labkit.checks.shared.beside import calls_are, is_refused, nbytes, same, stays_in_group
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.split import drawn, dtype_of
from labkit.checks.shared.surroundings import keeps_nothing, operator_keeps

PAIR_ID = "07.sequence-parallel-pair"
HANDED = {"gather": ("slice", "grad_whole"), "scatter": ("whole", "grad_slice")}  # x, and its gradient
AGAIN = (
    " where another follows through one graph",
    " that follows another through one graph",
)  # of a backward


def pair_case(name: str, kind: str, ranks: int, seed: int, shape: Sequence[int], **params: Any) -> Case:
    """A case of the sequence pair; shape: of each rank's slice."""
    return Case(name, ranks, {"shape": list(shape), **params}, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    return [
        pair_case("two ranks", "values", 2, seed, [2, 3, 5], late=[0]),
        pair_case("two dimensions", "values", 2, seed, [2, 3]),
        pair_case("bfloat16", "values", 2, seed, [2, 3, 5], dtype="bfloat16"),
        pair_case("views", "layout", 2, seed, [2, 3, 5]),
        pair_case("5 tokens", "uneven", 2, seed, [2, 3, 5]),
        pair_case("four ranks", "values", 4, seed, [3, 2, 4]),
        pair_case("10 tokens on four ranks", "uneven", 4, seed, [2, 3, 5], missing=2),
        pair_case("6 tokens on four ranks", "uneven", 4, seed, [2, 2, 5], missing=2),  # chunk: 3 equal ones
        pair_case("two groups of two", "subgroup", 4, seed, [2, 3, 5], groups=PAIRS),
        pair_case("zeros on one rank", "values", 2, seed, [2, 3], zeros_on=1),
        pair_case("kept for backward", "kept", 2, seed, [1]),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Every rank's slice and its gradient for the gather, and partial sums and gradient for the scatter. What
    is handed to forward is zeros on the rank that the case's `zeros_on` names, gradients on the next.
    """
    shape = tuple(case.params["shape"])
    whole = (shape[0], shape[1] * len(groups_of(case)[0]), *shape[2:])
    shapes = {"slice": shape, "whole": whole, "grad_slice": shape, "grad_whole": whole}
    found = {name: drawn(case, generator, case.ranks, *of) for name, of in shapes.items()}
    if "zeros_on" in case.params:
        for name, tensor in found.items():
            tensor[(case.params["zeros_on"] + name.startswith("grad")) % case.ranks] = 0.0
    return found


def _view(tensor: Tensor) -> Tensor:
    """The same numbers, in memory of another order."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def _use_both(rank: Rank, view: Callable[[Tensor], Tensor]) -> None:
    """Both operators, forward and backward, each rank with numbers of its own. Answers for each: "output
    alone", without gradients; output, input_grad, what was handed over afterwards, and "... later" of a call
    that another one follows; "input_grad" and each of `AGAIN`, of two backwards through one graph, of kind
    "values"; and those of `_use_inside`. Between forward and backward a group of this rank alone comes
    through, and before them where groups are tried.
    """
    group, alone = enter_group(rank), group_alone(rank)
    gather, scatter = rank.student.GatherSequence, rank.student.ReduceScatterSequence
    for name, operator in (("gather", gather), ("scatter", scatter)):
        x, gradient = HANDED[name]
        given, back = view(rank.inputs[x]), view(rank.inputs[gradient])
        if rank.case.kind == "subgroup":
            operator.apply(view(rank.inputs["slice"]), alone)
        with torch.no_grad(), rank.recording(f"{name} alone"):
            rank.answer(f"{name} output alone", operator.apply(given, group))
        given.requires_grad_()
        with rank.recording(f"{name} forward"):
            out = operator.apply(given, group)
        rank.answer(f"{name} output", out)
        operator.apply(view(rank.inputs["slice"]), alone)
        with rank.attempt("input-gradients"), rank.recording(f"{name} backward"):
            out.backward(back)
        rank.answer(f"{name} input_grad", given.grad)
        rank.answer(f"{name} {x} after", given)
        rank.answer(f"{name} {gradient} after", back)
        with rank.attempt("callers-tensors"), rank.recording(f"{name} later"):
            out, of_input = first_of_two(partial(_applied, operator, group), given, back)
            rank.answer(f"{name} output later", out)
            rank.answer(f"{name} input_grad later", of_input)
        with rank.attempt("callers-tensors"):
            if rank.case.kind == "values":
                of_inputs = back_twice(partial(_applied, operator, group), given, back)
                for when, of_input in zip(AGAIN, of_inputs, strict=True):
                    rank.answer(f"{name} input_grad{when}", of_input)
        _use_inside(rank, name, partial(_applied, operator, group), given.detach(), back)


def _use_inside(rank: Rank, name: str, apply: Callable[[Tensor], Tensor], x: Tensor, back: Tensor) -> None:
    """The same of an x that another operation has made. Answers: output and input_grad, "... inside", and
    what was handed over afterwards. Recordings: forward and backward.
    """
    leaf = x.clone().requires_grad_()
    made = as_inside(leaf)
    with rank.recording(f"{name} forward inside"):
        out = apply(made)
    rank.answer(f"{name} output inside", out)
    with rank.attempt("input-gradients"), rank.recording(f"{name} backward inside"):
        out.backward(back)
    rank.answer(f"{name} input_grad inside", leaf.grad)
    rank.answer(f"{name} made after", made)


def _applied(operator: Any, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    return operator.apply(x, group)


def _count_kept(rank: Rank) -> None:
    """Facts: gather kept, scatter kept."""
    with rank.device:  # where what it makes is made
        gather, scatter, dtype = (
            rank.student.GatherSequence,
            rank.student.ReduceScatterSequence,
            dtype_of(rank.case),
        )
        rank.fact("gather kept", operator_keeps(gather, rank.group, dtype))
        rank.fact("scatter kept", operator_keeps(scatter, rank.group, dtype))


def _use_views(rank: Rank) -> None:
    """The same with tensors that lie otherwise in memory on every second rank."""
    _use_both(rank, torch.clone if rank.rank % 2 else _view)


def _scatter_uneven(rank: Rank) -> None:
    """Fact: refusal."""
    group = enter_group(rank)
    with rank.expect_error("refusal"):
        rank.student.ReduceScatterSequence.apply(rank.inputs["whole"][:, _missing(rank.case) :], group)


def _missing(case: Case) -> int:
    """How many tokens there are too few."""
    return int(case.params.get("missing", 1))


# -- judges


def _joins(told: str, given: str, answered: str) -> Judge:
    """What was answered is what the group's ranks were given, joined in rank order."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            members = place_of(evidence.case, answer.rank).members
            joined = torch.cat([evidence.inputs[given][r] for r in members], dim=1)
            yield same(told, joined, answer, answered)

    return judge


def _adds(told: str, given: str, answered: str) -> Judge:
    """What was answered is this rank's tokens of the sum of what the group's ranks were given."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            place = place_of(evidence.case, answer.rank)
            total = torch.stack([evidence.inputs[given][r] for r in place.members]).sum(0)
            yield same(told, place.block(total, 1), answer, answered)

    return judge


def _tensors_kept(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name, handed in HANDED.items():
            for each in handed:
                told, given = f"{name}: {each} as it was handed over", evidence.inputs[each][answer.rank]
                yield same(told, given, answer, f"{name} {each} after")
            told = f"{name}: {handed[0]} that is no leaf, as it was handed over"
            yield same(told, evidence.inputs[handed[0]][answer.rank], answer, f"{name} made after")


def _one_call_each_way(evidence: Evidence) -> Iterator[Finding]:
    gather = [("all_gather", nbytes(evidence.inputs["slice"][0]))]
    scatter = [("reduce_scatter", nbytes(evidence.inputs["whole"][0]))]
    for answer in evidence.answers:
        if place_of(evidence.case, answer.rank).size > 1:
            yield calls_are("gather alone", gather, answer)
            yield calls_are("scatter alone", scatter, answer)
            yield calls_are("gather forward", gather, answer)
            yield calls_are("gather backward", scatter, answer)
            yield calls_are("scatter forward", scatter, answer)
            yield calls_are("scatter backward", gather, answer)
            yield calls_are("gather forward inside", gather, answer)
            yield calls_are("gather backward inside", scatter, answer)
            yield calls_are("scatter forward inside", scatter, answer)
            yield calls_are("scatter backward inside", gather, answer)


def _refused_tokens(case: Case) -> tuple[int, int]:
    size = len(groups_of(case)[0])
    return case.params["shape"][1] * size - _missing(case), size


def _values(when: str = "") -> Judge:
    return every(
        _joins(f"gather{when}: all tokens", "slice", f"gather output{when}"),
        _adds(f"scatter{when}: this rank's tokens of the sum", "whole", f"scatter output{when}"),
    )


def _gradients(when: str = "") -> Judge:
    sums, joins = (f"backward of {name}{when}" for name in ("gather", "scatter"))
    return every(
        _adds(f"{sums}: this rank's tokens of the sum", "grad_whole", f"gather input_grad{when}"),
        _joins(f"{joins}: the gradients of all tokens", "grad_slice", f"scatter input_grad{when}"),
    )


_VALUES, _GRADIENTS = _values(), _gradients()
_USED = Run(partial(_use_both, view=torch.clone), _inputs, own_entry)
EXERCISE = Exercise(
    PAIR_ID,
    "Gather and scatter the sequence",
    ("GatherSequence", "ReduceScatterSequence"),
    {
        "values": _USED,
        "layout": Run(_use_views, _inputs, own_entry),
        "kept": Run(_count_kept),
        "uneven": Run(_scatter_uneven, _inputs, own_entry),
        "subgroup": _USED,
    },
    _cases,
    (
        Property(
            "forward-values",
            "numbers",
            3,
            "One joins all tokens in rank order; the other adds, and keeps this rank's tokens.",
            "tokens are dim 1; the first dimension is the batch",
            {"values": every(_VALUES, _values(" alone"), _values(" inside"))},
        ),
        Property(
            "input-gradients",
            "numbers",
            3,
            "The backward of each is the forward of the other.",
            "behind the gather every rank uses all tokens, so their gradients must be added, not only cut",
            {"values": every(_GRADIENTS, _gradients(" inside"))},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "One all_gather or one reduce_scatter each way, of this rank's slice or the whole.",
            "an all_reduce that is cut afterwards sends twice as much",
            {"values": _one_call_each_way},
            dict.fromkeys(("layout", "subgroup"), _one_call_each_way),
        ),
        Property(
            "callers-tensors",
            "robustness",
            1,
            "What was handed over still holds what it held, what was given stays when it is used again, and"
            " nothing is kept for backward.",
            "reduce a copy, into new memory each time",
            {
                "values": every(
                    _tensors_kept, _values(" later"), _gradients(" later"), *map(_gradients, AGAIN)
                ),
                "kept": keeps_nothing("gather kept", "scatter kept"),
            },
        ),
        Property(
            "any-layout",
            "robustness",
            1,
            "Tensors that are not contiguous work.",
            "a slice along dim 1 is not contiguous",
            {"layout": every(_VALUES, _GRADIENTS)},
        ),
        Property(
            "uneven-sequence",
            "robustness",
            1,
            "A number of tokens that does not divide is a ValueError that names both.",
            "chunk gives slices of different sizes",
            {"uneven": is_refused("refusal", "ValueError", names=_refused_tokens)},
        ),
        subgroup(every(_VALUES, _GRADIENTS, stays_in_group)),
    ),
    forbids=TORCHS_OWN,
)
