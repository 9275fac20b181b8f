"""What attention over a ring must show in forward and in backward."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import JSON, Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_11.between import BETWEEN, recorded_throughout, single_numbers_between
from labkit.checks.lesson_11.partial import OBJECT_BYTES, as_handed, tell_changed, unchanged
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
from labkit.checks.rank import Rank
from labkit.checks.shared.again import others
from labkit.checks.shared.beside import all_awaited, calls_of, calls_text, on_each, same, stays_in_group
from labkit.checks.shared.held import bytes_kept
from labkit.checks.shared.holding import held_since, holding
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.leaving import numbers_given
from labkit.checks.shared.places import enter_group, place_of


def _cases_with_backward(seed: int) -> list[Case]:
    """What is kept is counted in the process, where small tensors do not show beside its own objects."""
    return [*ring_cases(seed), ring_case("what is kept", "kept", 2, [1, 2, 512, 8], seed)]


def _trained(case: Case) -> list[str]:
    """What of q, k and v needs a gradient: adapters of queries and values alone leave keys as they are."""
    return [name for name in PARTS if name not in case.params.get("frozen", ())]


def _differentiate(rank: Rank) -> None:
    """Answers out, out.later, when backward is over, grad.q, .k, .v, of a second backward of the same graph,
    and early.q, .k, .v: what half the first one's, of twice the gradient, are by then; evaluated, of
    `others`, without a graph; recordings forward and backward, all times; facts kept_bytes, from the input's,
    of a forward of leaves and one of what is no leaf, circle, as `_stays` has it, and changed. Between
    forward and backward there are other forwards, as there are in a model of more layers.
    """
    group, trained = enter_group(rank), _trained(rank.case)
    leaves = [as_handed(rank, name).requires_grad_(name in trained) for name in PARTS]
    grad = as_handed(rank, "grad")
    with recorded_throughout(rank):
        _there_and_back(rank, group, leaves, grad)
    given = {name: leaf.detach() for name, leaf in zip(PARTS, leaves, strict=True)}
    tell_changed(rank, {**given, "grad": grad})
    for name, leaf in zip(PARTS, leaves, strict=True):
        rank.answer(f"grad.{name}", leaf.grad)


def _there_and_back(rank: Rank, group: dist.ProcessGroup, leaves: Sequence[Tensor], grad: Tensor) -> None:
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
        rank.fact("circle", _stays(lambda: rank.student.RingAttention.apply(*leaves, group)))
    rank.answer("out", out)
    with rank.attempt("gradients"):
        needed = [leaf for leaf in leaves if leaf.requires_grad]
        with rank.recording("backward"):
            early = torch.autograd.grad(out, needed, 2.0 * grad, retain_graph=True, allow_unused=True)
        with rank.recording("backward"):
            torch.autograd.grad(later, needed, grad, allow_unused=True)
        with rank.recording("backward"):
            out.backward(grad)
        for name, gradient in zip(_trained(rank.case), early, strict=True):
            rank.answer(f"early.{name}", None if gradient is None else gradient / 2.0)
    rank.answer("out.later", out)


def _stays(forward: Callable[[], Tensor]) -> bool:
    """Whether an output that nobody has any more is still there."""
    gc.disable()  # Python's search for circles would find it some time
    dropped = weakref.ref(forward())
    stays = dropped() is not None
    gc.enable()
    return stays


def _keep(rank: Rank) -> None:
    """Facts kept_bytes: what one forward leaves behind with its output, whoever holds it, as arrays too;
    circle, as `_stays` has it; forwards: how many there were.
    Recording: all that is sent, in these and one backward. Answers out and grad.q, .k, .v.
    """
    leaves, forwards = [as_handed(rank, name).requires_grad_() for name in PARTS], count()
    given = [as_inside(leaf) for leaf in leaves]

    def forward() -> Tensor:
        next(forwards)
        out: Tensor = rank.student.RingAttention.apply(*given, rank.group)
        return out

    with recorded_throughout(rank):
        rank.fact("kept_bytes", [bytes_kept(lambda: forward)])
        rank.fact("circle", _stays(forward))
        out = forward()
        rank.answer("out", out)
        with rank.attempt("gradients"):
            out.backward(as_handed(rank, "grad"))
    rank.fact("forwards", next(forwards))
    for name, leaf in zip(PARTS, leaves, strict=True):
        rank.answer(f"grad.{name}", leaf.grad)


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
        for name in _trained(evidence.case):
            expected = evidence.own(answer.rank, [found[name] for found in evidence.gradients])
            told = _gradient_of(name)
            yield same(told, expected, answer, f"grad.{name}")
            yield same(f"{told}, still there after another backward", expected, answer, f"early.{name}")
        yield unchanged(evidence, answer)
        yield same("the output as forward gave it", answer.tensors["out"], answer, "out.later")


def _gradient_of(name: str) -> str:
    return f"gradient of {name} from the whole sequence"


def _are_gradients_of_many(evidence: Whole) -> Iterator[Finding]:
    """Where it is counted what is kept."""
    for answer in evidence.answers:
        for name in PARTS:
            expected = evidence.own(answer.rank, [found[name] for found in evidence.gradients])
            yield same(_gradient_of(name), expected, answer, f"grad.{name}")


def _sends_at_most(evidence: Whole) -> Iterator[Finding]:
    """In each backward, where gradients that nobody needs may stay at home."""
    for answer in evidence.answers:
        messages = 4 * place_of(evidence.case, answer.rank).size - 2
        most = messages * message_bytes(evidence, answer.rank)
        for name in (*answer.earlier("backward"), "backward"):
            calls = calls_of(answer, name)
            sent = sum(num_bytes for op, num_bytes in calls if op == "send")
            right = sent <= most and {op for op, _ in calls} <= {"send", "recv"}
            told = f"backward: at most {most:,} bytes sent, to a neighbour"
            yield Finding(right, told, calls_text(calls), answer.rank)


def _sends_no_more_meanwhile(evidence: Whole) -> Iterator[Finding]:
    """Where it is counted what is kept: all forwards and the backward together."""
    for answer in evidence.answers:
        judge = sends(BETWEEN, partial(_messages_of, answer.facts["forwards"]))
        yield from judge(Whole(evidence.case, evidence.inputs, [answer]))


def _messages_of(forwards: int, ranks: int) -> int:
    return forwards * 2 * (ranks - 1) + 4 * ranks - 2


def _keeps_its_own(evidence: Evidence, answer: RankAnswer) -> Finding:
    """The output and the lse beside q, k and v, which the caller has."""
    own = message_bytes(evidence, answer.rank)
    lse = own // evidence.case.params["shape"][-1]
    objects = OBJECT_BYTES if evidence.case.kind == "kept" else 256
    most, kept = own + lse + objects, max(answer.facts["kept_bytes"])
    told = f"at most {most:,} bytes kept: the output and its lse"
    return Finding(kept <= most, told, f"{kept:,} bytes", answer.rank)


def _goes_with_its_output(evidence: Evidence, answer: RankAnswer) -> Finding:
    told = "an output that nobody has any more is gone, and what was kept with it"
    return Finding(not answer.facts["circle"], told, "its own graph holds it", answer.rank)


KEPT = every(on_each(_keeps_its_own), on_each(_goes_with_its_output))
ATTENTION = Run(_differentiate, ring_inputs, own_tokens_of, Whole)
EXERCISE = Exercise(
    "11.ring-attention",
    "The ring, with its backward",
    ("RingAttention",),
    {
        **dict.fromkeys(("values", "subgroup", "alone"), ATTENTION),
        "kept": Run(_keep, ring_inputs, own_tokens_of, Whole),
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
            {"values": _are_gradients, "kept": _are_gradients_of_many},
        ),
        Property(
            "messages",
            "mechanism",
            2,
            "Backward sends 4n - 2 tensors: keys and values n - 1 steps, their gradients n.",
            "the keys of the last step need not go on",
            {
                "values": every(
                    sends("forward", lambda n: 2 * (n - 1)),
                    sends("backward", lambda n: 4 * n - 2),
                    on_each(lambda _, answer: all_awaited(answer)),
                    single_numbers_between(0),
                )
            },
            {
                "subgroup": every(
                    sends("forward", lambda n: 2 * (n - 1)), _sends_at_most, single_numbers_between(0)
                ),
                "kept": _sends_no_more_meanwhile,
            },
        ),
        Property(
            "kept",
            "mechanism",
            2,
            "Beside q, k and v the output and its lse are kept for backward, nothing else in any form, and no"
            " longer than the output is there.",
            "autograd keeps what every block was made from: write the backward yourself",
            dict.fromkeys(("values", "kept"), KEPT),
            {"subgroup": KEPT},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, on one rank alone, on views of tensors, and where"
            " not all of q, k and v need a gradient.",
            "a rank of the group was used as a global rank, or sums of values stay where keys need none",
            {"subgroup": every(_are_gradients, stays_in_group), "alone": _are_gradients},
        ),
    ),
    builds_on=("11.merge-partials", "11.block-backward", "11.own-tokens", "11.ring-forward"),
    forbids=TORCHS_OWN,
)
