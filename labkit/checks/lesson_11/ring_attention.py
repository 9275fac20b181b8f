"""What attention over a ring must show in forward and in backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import JSON, Case, RankAnswer
from labkit.checks.exercise import Exercise, Finding, Property, Run, every
from labkit.checks.lesson_11.between import recorded_throughout, single_numbers_between
from labkit.checks.lesson_11.halves import AFTER_ANOTHER, differentiate_after_another, enter_half
from labkit.checks.lesson_11.partial import as_handed, tell_changed, unchanged
from labkit.checks.lesson_11.ring import (
    PARTS,
    TORCHS_OWN,
    Whole,
    message_bytes,
    own_tokens_of,
    ring_case,
    ring_cases,
    ring_inputs,
    sends,
)
from labkit.checks.lesson_11.ring_kept import (
    KEPT,
    SAVED,
    are_gradients_of_many,
    gradient_of,
    hold,
    holds_a_step,
    keep,
    saved,
    sends_no_more_meanwhile,
    stays,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.again import others
from labkit.checks.shared.beside import all_awaited, calls_of, calls_text, on_each, same, stays_in_group
from labkit.checks.shared.holding import held_since, holding
from labkit.checks.shared.leaving import numbers_given
from labkit.checks.shared.places import enter_group, place_of

SOME = [names for number in (1, 2) for names in combinations(PARTS, number)]  # that may need gradients alone
NEEDED = [(names, name) for names in SOME for name in names]
BACKWARD_OF_SOME = "backward to some of q, k and v"  # what is recorded where others need no gradient


def _cases_with_backward(seed: int) -> list[Case]:
    """What is kept is counted in the process, where small tensors do not show beside its own objects. What is
    there at a time shows where there are many ranks, and few scores beside keys.
    """
    return [
        *ring_cases(seed),
        ring_case("what is kept", "kept", 2, [1, 2, 512, 8], seed),
        ring_case("eight ranks", "held", 8, [1, 16, 16], seed),
    ]


def _differentiate(rank: Rank) -> None:
    """Answers out, out.later, when backward is over, grad.q, .k, .v, of a second backward of the same graph,
    and early.q, .k, .v: what half the first one's, of twice the gradient, are by then; evaluated, of
    `others`, without a graph; of kind "values" what `differentiate_after_another` answers, and of others what
    `_train_some` does; recordings forward and backward, all times; facts kept_bytes, from the input's, of a
    forward of leaves and one of what is no leaf, circle, as `stays` has it, saved, as `saved` has it, and
    changed. Between forward and backward there are other forwards, as there are in a model of more layers.
    """
    group = enter_group(rank)
    half = enter_half(rank) if rank.case.kind == "values" else None
    leaves = [as_handed(rank, name).requires_grad_() for name in PARTS]
    grad = as_handed(rank, "grad")
    with recorded_throughout(rank):
        _there_and_back(rank, group, leaves, grad)
        if half is None:
            with rank.attempt("subgroup"):  # after an error messages may be on their way: no more calls
                for names in SOME:
                    _train_some(rank, group, names)
        else:
            own = {name: rank.inputs[name] for name in PARTS}
            differentiate_after_another(
                rank, half, own, grad, lambda t, g: rank.student.RingAttention.apply(*t, g)
            )
    given = {name: leaf.detach() for name, leaf in zip(PARTS, leaves, strict=True)}
    tell_changed(rank, {**given, "grad": grad})
    for name, leaf in zip(PARTS, leaves, strict=True):
        rank.answer(f"grad.{name}", leaf.grad)


def _there_and_back(
    rank: Rank,
    group: dist.ProcessGroup,
    leaves: Sequence[Tensor],
    grad: Tensor,
) -> None:
    kept, inside = list[JSON](), [1.0 - leaf for leaf in leaves]

    def forward(given: Sequence[Tensor]) -> Tensor:
        before = holding()
        with rank.recording("forward"), numbers_given() as read:
            out: Tensor = rank.student.RingAttention.apply(*given, group)
        kept.append(held_since(before) + read.kept_bytes)
        return out

    out, later = forward(leaves), forward(inside)
    rank.fact("kept_bytes", list(kept))
    with torch.no_grad(), rank.recording("forward"):
        rank.answer("evaluated", rank.student.RingAttention.apply(*others(*leaves), group))
    with rank.recording("forward"):
        rank.fact("circle", stays(lambda: rank.student.RingAttention.apply(*leaves, group)))
    with rank.recording("forward"):
        rank.fact("saved", saved(leaves, lambda: rank.student.RingAttention.apply(*leaves, group)))
    rank.answer("out", out)
    with rank.attempt("gradients"):
        with rank.recording("backward"):
            early = torch.autograd.grad(out, leaves, 2.0 * grad, retain_graph=True, allow_unused=True)
        with rank.recording("backward"):
            torch.autograd.grad(later, leaves, grad, allow_unused=True)
        with rank.recording("backward"):
            out.backward(grad)
        for name, gradient in zip(PARTS, early, strict=True):
            rank.answer(f"early.{name}", None if gradient is None else gradient / 2.0)
    rank.answer("out.later", out)


def _train_some(rank: Rank, group: dist.ProcessGroup, names: Sequence[str]) -> None:
    """Where only these of q, k and v need a gradient: adapters of some leave the others as they are. Answers
    some.NAMES.NAME, the gradients; recordings forward and `BACKWARD_OF_SOME`.
    """
    leaves = {name: as_handed(rank, name).requires_grad_(name in names) for name in PARTS}
    with rank.recording("forward"):
        out = rank.student.RingAttention.apply(*leaves.values(), group)
    with rank.recording(BACKWARD_OF_SOME):
        out.backward(as_handed(rank, "grad"))
    for name in names:
        rank.answer(f"some.{''.join(names)}.{name}", leaves[name].grad)


def _is_output(evidence: Whole, answer: RankAnswer) -> Finding:
    out = evidence.own(answer.rank, [out for out, _ in evidence.partials])
    return same("output of this rank's queries over the whole sequence", out, answer, "out")


def _is_output_without_graph(evidence: Whole, answer: RankAnswer) -> Finding:
    halves = dict(zip(PARTS, others(*(evidence.inputs[name] for name in PARTS)), strict=True))
    whole = Whole(evidence.case, evidence.inputs | halves, evidence.answers)
    out = whole.own(answer.rank, [out for out, _ in whole.partials])
    return same("output of a call of other numbers, without a graph", out, answer, "evaluated")


def _are_gradients(evidence: Whole) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name in PARTS:
            expected = evidence.own(answer.rank, [found[name] for found in evidence.gradients])
            told = gradient_of(name)
            yield same(told, expected, answer, f"grad.{name}")
            yield same(f"{told}, still there after another backward", expected, answer, f"early.{name}")
        yield unchanged(evidence, answer)
        yield same("the output as forward gave it", answer.tensors["out"], answer, "out.later")


def _gradients_after_another(evidence: Whole) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name in PARTS:
            expected = evidence.own(answer.rank, [found[name] for found in evidence.gradients])
            yield same(f"gradient of {name} {AFTER_ANOTHER}", expected, answer, f"beside.{name}")


def _gradients_of_some(evidence: Whole) -> Iterator[Finding]:
    for answer in evidence.answers:
        for names, name in NEEDED:
            expected = evidence.own(answer.rank, [found[name] for found in evidence.gradients])
            told = f"{gradient_of(name)}, where only {' and '.join(names)} need one"
            yield same(told, expected, answer, f"some.{''.join(names)}.{name}")


def _sends_at_most(evidence: Whole) -> Iterator[Finding]:
    """Where gradients that nobody needs may stay at home."""
    for answer in evidence.answers:
        messages = 4 * place_of(evidence.case, answer.rank).size - 2
        most = messages * message_bytes(evidence, answer.rank)
        for name in (*answer.earlier(BACKWARD_OF_SOME), BACKWARD_OF_SOME):
            calls = calls_of(answer, name)
            sent = sum(num_bytes for op, num_bytes in calls if op == "send")
            right = sent <= most and {op for op, _ in calls} <= {"send", "recv"}
            told = f"{BACKWARD_OF_SOME}: at most {most:,} bytes sent, to a neighbour"
            yield Finding(right, told, calls_text(calls), answer.rank)


ATTENTION = Run(_differentiate, ring_inputs, own_tokens_of, Whole)
EXERCISE = Exercise(
    "11.ring-attention",
    "The ring, with its backward",
    ("RingAttention",),
    {
        **dict.fromkeys(("values", "subgroup", "alone"), ATTENTION),
        "kept": Run(keep, ring_inputs, own_tokens_of, Whole),
        "held": Run(hold, ring_inputs, own_tokens_of),
    },
    _cases_with_backward,
    (
        Property(
            "output",
            "numbers",
            1,
            "The output is that of the whole sequence.",
            "blocks merged without their lse, or a mask made with this rank's positions for another's keys",
            {
                "values": every(on_each(_is_output), on_each(_is_output_without_graph)),
                "kept": on_each(_is_output),
            },
            dict.fromkeys(("subgroup", "alone"), on_each(_is_output_without_graph)),
        ),
        Property(
            "gradients",
            "numbers",
            4,
            "The gradients of q, k and v are those of the whole sequence.",
            "sums of dk and dv must come home to the rank of their keys: one step more than the keys go",
            {"values": every(_are_gradients, _gradients_after_another), "kept": are_gradients_of_many},
        ),
        Property(
            "messages",
            "mechanism",
            2,
            "Backward sends 4n - 2 tensors: keys and values n - 1 steps, their gradients n; those of all"
            " ranks are never there together.",
            "the keys of the last step need not go on, or all were gathered before the first block",
            {
                "values": every(
                    sends("forward", lambda n: 2 * (n - 1)),
                    sends("backward", lambda n: 4 * n - 2),
                    on_each(lambda _, answer: all_awaited(answer)),
                    single_numbers_between(0),
                ),
                "held": holds_a_step,
            },
            {
                "subgroup": every(
                    sends("forward", lambda n: 2 * (n - 1)),
                    sends("backward", lambda n: 4 * n - 2 if n > 1 else 0),
                    _sends_at_most,
                    single_numbers_between(0),
                ),
                "kept": sends_no_more_meanwhile,
            },
        ),
        Property(
            "kept",
            "mechanism",
            2,
            "Beside q, k and v the output and its lse are kept for backward, nothing else in any form, and no"
            " longer than the output is there.",
            "autograd keeps what every block was made from: write the backward yourself",
            {"values": SAVED, "kept": KEPT},
            {"subgroup": SAVED},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, on one rank alone, on views of tensors, with or"
            " without dimensions before [c, d], and where not all of q, k and v need a gradient.",
            "a rank of the group was used as a global rank, or sums of values stay where keys need none",
            {
                "subgroup": every(_are_gradients, _gradients_of_some, stays_in_group),
                "alone": every(_are_gradients, _gradients_of_some),
            },
        ),
    ),
    builds_on=("11.merge-partials", "11.block-backward", "11.own-tokens", "11.ring-forward"),
    forbids=TORCHS_OWN,
)
