"""What Ulysses must show: attention over whole sequences, with heads given away for tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_11.between import recorded_throughout
from labkit.checks.lesson_11.halves import AFTER_ANOTHER, differentiate_after_another, enter_half
from labkit.checks.lesson_11.heads_sent import BACKWARD_OF_ONE, MESSAGES
from labkit.checks.lesson_11.partial import (
    PATIENCE,
    as_handed,
    causal,
    drawn,
    tell_changed,
    unchanged,
    whole_attention,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.again import others
from labkit.checks.shared.beside import calls_of, is_refused, on_each, same, stays_in_group
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.proportion import in_proportion

PARTS = ("q", "k", "v")
AGAIN = "second backward"  # what is recorded of one through the same graph


def heads_case(
    name: str, kind: str, ranks: int, shape: list[int], kv_heads: int, seed: int, **params: Any
) -> Case:
    """shape: [b, a, s, d] of the whole sequence. quiet: ranks whose output has a gradient of zeros."""
    settings = {"shape": shape, "kv_heads": kv_heads, **params}
    return Case(name, ranks, settings, seed, kind=kind, timeout=PATIENCE)


def _cases(seed: int) -> list[Case]:
    return [
        heads_case("three ranks", "values", 3, [2, 6, 12, 4], 3, seed, late=[1]),
        heads_case("four ranks, float32", "values", 4, [1, 8, 16, 6], 8, seed, dtype="float32", quiet=[2]),
        heads_case("two ranks, two heads for each key", "values", 2, [1, 8, 6, 2], 4, seed),
        heads_case("numbers of 16 bits", "low", 2, [1, 4, 8, 4], 2, seed, dtype="bfloat16"),
        heads_case("crossed groups", "subgroup", 4, [2, 4, 8, 4], 2, seed, groups=[[0, 3], [1, 2]]),
        heads_case("alone", "alone", 1, [1, 2, 6, 4], 1, seed),
        heads_case("too few key-value heads", "refused", 4, [1, 8, 8, 2], 2, seed),
        heads_case("heads that do not divide", "refused", 3, [1, 4, 6, 2], 4, seed),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """One sequence for each group: [groups, b, heads, s, d]."""
    b, a, s, d = case.params["shape"]
    heads = {"q": a, "k": case.params["kv_heads"], "v": case.params["kv_heads"], "grad": a}
    groups = len(groups_of(case))
    found = {name: drawn(case, generator, groups, b, n, s, d) for name, n in heads.items()}
    for rank in case.params.get("quiet", []):
        place = place_of(case, rank)
        place.block(found["grad"][place.index], -2).zero_()
    return found


def _own(case: Case, inputs: Inputs, rank: int) -> Inputs:
    place = place_of(case, rank)
    return {name: place.block(t[place.index], -2).contiguous() for name, t in inputs.items()}


def attend_whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of [b, a, s, d] over [b, k, s, d], a / k neighbouring heads to each of keys."""
    queries, keys = (torch.arange(t.shape[-2], device=t.device) for t in (q, k))
    keys_of_heads, values = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    return whole_attention(q, keys_of_heads, values, causal(queries, keys))[0]


def as_kernels_give(case: Case, out: Tensor) -> Tensor:
    """An output [b, a, s, d]; of kind "subgroup" it lies in memory as of fused kernels, [b, s, a, d]."""
    return out.transpose(1, 2).contiguous().transpose(1, 2) if case.kind == "subgroup" else out


@dataclass(frozen=True)
class WholeSequences(Evidence):
    """With attention over each group's sequence, and its gradients."""

    @cached_property
    def references(self) -> list[dict[str, Tensor]]:
        """For each group: out, q, k and v, the last three gradients."""
        return [self._reference(index) for index in range(len(groups_of(self.case)))]

    def _reference(self, index: int) -> dict[str, Tensor]:
        leaves = [self.inputs[name][index].clone().requires_grad_() for name in PARTS]
        out = attend_whole(*leaves)
        gradients = torch.autograd.grad(out, leaves, self.inputs["grad"][index])
        return {"out": out.detach(), **dict(zip(PARTS, gradients, strict=True))}

    def own(self, rank: int, name: str) -> Tensor:
        """The rank's tokens."""
        place = place_of(self.case, rank)
        return place.block(self.references[place.index][name], -2)


# -- on a rank


def _attend(rank: Rank) -> None:
    """Answers out and grad.q, .k, .v; evaluated, of `others` without a graph; partly.NAME and
    grad.partly.NAME of the same inputs as out, of which only that one needs a gradient; recordings forward,
    of each, backward, `BACKWARD_OF_ONE`; of kind "values" what `differentiate_after_another` answers, and
    again.NAME, half of what a second backward with twice the gradient gives. Facts: changed; attended: of
    each call the shapes of queries and keys of each time that attention was asked for.
    Between forward and backward there are other forwards, as there are in a model of more layers.
    """
    group = enter_group(rank)
    half = enter_half(rank) if rank.case.kind == "values" else None
    leaves = [as_handed(rank, name).requires_grad_() for name in PARTS]
    with recorded_throughout(rank):
        given = leaves if rank.case.kind == "values" else [as_inside(leaf) for leaf in leaves]
        _attend_often(rank, group, given)
        if half is not None:
            _attend_elsewhere(rank, half)
    tell_changed(rank, {name: tensor.detach() for name, tensor in zip(PARTS, given, strict=True)})
    for name, leaf in zip(PARTS, leaves, strict=True):
        rank.answer(f"grad.{name}", leaf.grad)


def _attend_often(rank: Rank, group: dist.ProcessGroup, leaves: Sequence[Tensor]) -> None:
    attended = list[list[JSON]]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attended[-1].append([list(q.shape), list(k.shape)])
        return as_kernels_give(rank.case, attend_whole(q, k, v))

    def go(*given: Tensor) -> Tensor:
        attended.append([])
        with rank.recording("forward"):
            out: Tensor = rank.student.ulysses_attention(*given, group, attend)
        return out

    with torch.no_grad():
        rank.answer("evaluated", go(*others(*leaves)))
    go(*others(*leaves))
    out = go(*leaves)
    go(*(1.0 - leaf for leaf in leaves))
    for name in PARTS:
        _train_one(rank, name, leaves, go)
    rank.fact("attended", [list(one) for one in attended])
    rank.answer("out", out)
    with rank.attempt("gradients"), rank.recording("backward"):
        (out * as_handed(rank, "grad")).sum().backward(retain_graph=True)
    if rank.case.kind == "values":
        with rank.attempt("gradients"), rank.recording(AGAIN):
            back = torch.autograd.grad(out, list(leaves), 2 * as_handed(rank, "grad"))
            for name, tensor in zip(PARTS, back, strict=True):
                rank.answer(f"again.{name}", tensor / 2)


def _attend_elsewhere(rank: Rank, half: dist.ProcessGroup) -> None:
    """All heads are there twice, as one or two ranks divide them then."""
    given = {name: twice(rank.inputs[name]) for name in PARTS}
    differentiate_after_another(
        rank,
        half,
        given,
        twice(rank.inputs["grad"]),
        lambda tensors, group: rank.student.ulysses_attention(*tensors, group, attend_whole),
    )


def twice(heads: Tensor) -> Tensor:
    """[b, 2a, s, d] of [b, a, s, d], the same once more: so it is with what attention gives of them."""
    return heads.repeat(1, 2, 1, 1)


def _train_one(rank: Rank, name: str, leaves: Sequence[Tensor], go: Callable[..., Tensor]) -> None:
    """Attention of which one of q, k and v needs a gradient: the others come from layers that are frozen."""
    given = {part: leaf.detach() for part, leaf in zip(PARTS, leaves, strict=True)}
    given[name] = leaf = given[name].clone().requires_grad_()
    out = go(*given.values())
    rank.answer(f"partly.{name}", out)
    if out.requires_grad:  # otherwise there is no gradient to be told
        with _charged_once(rank), rank.recording(BACKWARD_OF_ONE):
            (out * as_handed(rank, "grad")).sum().backward()
    rank.answer(f"grad.partly.{name}", leaf.grad)


def _charged_once(rank: Rank) -> contextlib.AbstractContextManager[None]:
    """An error in such a backward costs gradients alone: in cases about others answers are missing."""
    return rank.attempt("gradients") if rank.case.kind == "values" else rank.expect_error("of one")


def _refuse(rank: Rank) -> None:
    """Fact refusal; recording refused."""
    with rank.recording("refused"), rank.expect_error("refusal"):
        rank.student.ulysses_attention(*(rank.inputs[n].clone() for n in PARTS), rank.group, attend_whole)


# -- judges


def _expected_outputs(evidence: WholeSequences, rank: int) -> dict[str, tuple[str, Tensor]]:
    """Of each answer: what it is, in words, and what it must be."""
    halves = dict(zip(PARTS, others(*(evidence.inputs[name] for name in PARTS)), strict=True))
    whole = WholeSequences(evidence.case, evidence.inputs | halves, evidence.answers)
    out = evidence.own(rank, "out")
    return {
        "out": ("", out),
        "evaluated": (" in a call of other numbers, without a graph", whole.own(rank, "out")),
        **{f"partly.{name}": (f" where only {name} needs a gradient", out) for name in PARTS},
    }


def _is_output(evidence: WholeSequences) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name, (more, out) in _expected_outputs(evidence, answer.rank).items():
            told = f"output of this rank's queries over the whole sequence{more}"
            yield same(told, out, answer, name)


def _are_gradients(evidence: WholeSequences) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name in PARTS:
            told = f"gradient of {name} from the whole sequence"
            yield same(told, evidence.own(answer.rank, name), answer, f"grad.{name}")
        yield unchanged(evidence, answer)


def _gradients_again(evidence: WholeSequences) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name in PARTS:
            told = f"gradient of {name} in a second backward through one graph"
            yield same(told, evidence.own(answer.rank, name), answer, f"again.{name}")


def _gradients_of_one(evidence: WholeSequences) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name in PARTS:
            told = f"gradient of {name} where nothing else needs one"
            yield same(told, evidence.own(answer.rank, name), answer, f"grad.partly.{name}")


def _gradients_after_another(evidence: WholeSequences) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name in PARTS:
            expected = twice(evidence.own(answer.rank, name))
            yield same(f"gradient of {name} {AFTER_ANOTHER}", expected, answer, f"beside.{name}")


def _output_about(evidence: WholeSequences) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name, (more, out) in _expected_outputs(evidence, answer.rank).items():
            yield in_proportion(f"output{more}", [out], [answer.tensors.get(name)], answer.rank)


def _gradients_about(evidence: WholeSequences) -> Iterator[Finding]:
    """Of 16 bits each, as sums over heads and tokens are: how they are cut makes a difference."""
    for answer in evidence.answers:
        for name in PARTS:
            expected, seen = evidence.own(answer.rank, name), answer.tensors.get(f"grad.{name}")
            yield in_proportion(f"gradient of {name}", [expected], [seen], answer.rank)


def _own_heads(evidence: Evidence) -> Iterator[Finding]:
    """However often attention is asked for in a call: every time over all tokens, in all for an n-th of the
    heads, and with no more key-value heads than these heads of queries share.
    """
    b, a, s, d = evidence.case.params["shape"]
    kv_heads = evidence.case.params["kv_heads"]
    for answer in evidence.answers:
        size = place_of(evidence.case, answer.rank).size
        own, own_kv = a // size, kv_heads // size
        told = f"attention over {s} tokens for {own} of {a} heads, {own_kv} of {kv_heads} of keys"
        for shapes in answer.facts["attended"]:
            whole = all(q[2:] == [s, d] and k[2] == s and k[1] <= -(-q[1] * kv_heads // a) for q, k in shapes)
            right = whole and sum(q[0] * q[1] for q, _ in shapes) == b * a // size
            yield Finding(right, told, f"queries and keys of {shapes}", answer.rank)


def _silent(evidence: Evidence, answer: RankAnswer) -> Finding:
    sent = sorted({op for op, _ in calls_of(answer, "refused")})
    return Finding(not sent, "refused before anything is sent", ", ".join(sent), answer.rank)


def _what_does_not_divide(case: Case) -> tuple[int, int]:
    heads = (case.params["shape"][1], case.params["kv_heads"])
    return next(n for n in heads if n % case.ranks), case.ranks


ATTENDED = Run(_attend, _inputs, _own, WholeSequences)
EVERYTHING = every(_is_output, _are_gradients)
EXERCISE = Exercise(
    "11.ulysses",
    "Heads for tokens",
    ("ulysses_attention",),
    {
        **dict.fromkeys(("values", "low", "subgroup", "alone"), ATTENDED),
        "refused": Run(_refuse, _inputs, _own),
    },
    _cases,
    (
        Property(
            "output",
            "numbers",
            2,
            "The output is that of the whole sequence, for this rank's tokens and all heads.",
            "what came must be joined in the order of ranks: tokens on the way there, heads on the way back",
            {"values": _is_output},
            {"low": _output_about},
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "The gradients of q, k and v are those of the whole sequence.",
            "the gradient of an exchange is the exchange the other way round",
            {"values": every(_are_gradients, _gradients_again, _gradients_of_one, _gradients_after_another)},
            {"low": _gradients_about, **dict.fromkeys(("subgroup", "alone"), _gradients_of_one)},
        ),
        Property(
            "messages",
            "mechanism",
            2,
            "Forward sends (n-1)/n of the rank's queries, keys, values and output, backward as much.",
            "keys and values were repeated for all heads before they were sent, or gathered",
            dict.fromkeys(("values", "low"), MESSAGES),
            {"subgroup": MESSAGES},
        ),
        Property(
            "own-heads",
            "mechanism",
            1,
            "Each rank attends over all tokens, for its own n-th of both kinds of heads alone.",
            "every rank computes all heads, or keys are repeated for the heads that share them",
            dict.fromkeys(("values", "alone"), _own_heads),
            dict.fromkeys(("low", "subgroup"), _own_heads),
        ),
        Property(
            "refused",
            "robustness",
            1,
            "Heads or key-value heads that the ranks do not divide are a ValueError that names both numbers,"
            " and nothing is sent.",
            "only the query heads were looked at",
            {
                "refused": every(
                    is_refused("refusal", "ValueError", names=_what_does_not_divide), on_each(_silent)
                )
            },
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, on one rank alone, and on views of tensors.",
            "no group was handed on",
            {"subgroup": every(EVERYTHING, stays_in_group), "alone": EVERYTHING},
        ),
    ),
    forbids=(
        "torch.distributed.nn.functional.all_to_all_single",
        "torch.distributed.nn.functional.all_to_all",
        "torch.distributed._functional_collectives.all_to_all_single_autograd",
    ),
)
