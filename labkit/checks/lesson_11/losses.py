"""What the loss over a divided sequence must show: a mean over all targets, wherever they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every, own_entry
from labkit.checks.lesson_11.between import recorded_throughout, single_numbers_between
from labkit.checks.lesson_11.partial import PATIENCE, as_views, drawn, tell_changed, unchanged
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of, calls_text, on_each, same, stays_in_group
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.proportion import in_proportion
from labkit.checks.shared.twins import each_once
from labkit.torch_private import dtype_bytes

IGNORED = -100
WEIGHT = 1.7  # of the loss in what is differentiated: a gradient must reach the logits through it
INFERENCE = "without gradients"  # what is recorded of a call without a graph
MOST_BYTES = 64  # for a sum and a number, in one call or two
OWN_PART = "this rank's part of the whole loss's gradient"
Reference = tuple[Tensor, Tensor, int]  # the loss, its logits' gradient [members, b, c, V], its targets


def loss_case(name: str, kind: str, ranks: int, shape: list[int], seed: int, **params: Any) -> Case:
    """shape: [b, c, V] of one rank's logits. without: ranks that have no targets. ignore: what stands for no
    target. scale: of the logits. Of kind "subgroup" what is given does not lie together in memory.
    """
    settings = {"shape": shape, "ignore": IGNORED, "without": [], "scale": 2.0, **params}
    return Case(name, ranks, settings, seed, kind=kind, timeout=PATIENCE)


def _cases(seed: int) -> list[Case]:
    return [
        loss_case("three ranks", "values", 3, [2, 5, 7], seed, late=[1]),
        loss_case(
            "four ranks, 50,257 is ignored", "values", 4, [1, 9, 5], seed, dtype="float32", ignore=50_257
        ),
        loss_case("logits of hundreds", "values", 2, [1, 7, 5], seed, dtype="float32", scale=150.0),
        loss_case("token 3 is ignored", "values", 2, [2, 6, 5], seed, ignore=3),
        loss_case("a rank without targets", "without", 3, [1, 6, 5], seed, without=[1]),
        loss_case("one target in all", "without", 2, [1, 2, 5], seed, without=[1]),
        loss_case("nobody has a target", "nobody", 2, [2, 3, 4], seed, without=[0, 1]),
        loss_case("alone, without a target", "nobody", 1, [1, 3, 4], seed, without=[0]),
        loss_case("logits in bfloat16", "bfloat16", 2, [2, 150, 6], seed, dtype="bfloat16"),
        loss_case("few logits in bfloat16", "bfloat16", 2, [1, 5, 6], seed, dtype="bfloat16"),
        loss_case("logits in float16", "bfloat16", 2, [2, 150, 6], seed, dtype="float16"),
        loss_case("crossed groups", "subgroup", 4, [2, 5, 6], seed, groups=[[0, 3], [1, 2]]),
        loss_case("alone", "alone", 1, [2, 4, 5], seed),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """logits [ranks, b, c, V] and targets [ranks, b, c], of which each rank ignores another number; later
    [ranks, b, c], the same targets, of which the last rank of each group has one less.
    """
    b, c, vocabulary = case.params["shape"]
    targets = torch.randint(vocabulary, (case.ranks, b * c), generator=generator)
    for rank in range(case.ranks):
        number = b * c if rank in case.params["without"] else (3 * rank + 1) % (b * c)
        targets[rank, torch.randperm(b * c, generator=generator)[:number]] = case.params["ignore"]
    later = targets.clone()
    for *_, last in groups_of(case):
        later[last, (targets[last] != case.params["ignore"]).nonzero()[:1]] = case.params["ignore"]
    return {
        "logits": drawn(case, generator, case.ranks, b, c, vocabulary, scale=case.params["scale"]),
        "targets": targets.view(case.ranks, b, c),
        "later": later.view(case.ranks, b, c),
    }


@dataclass(frozen=True)
class WholeLoss(Evidence):
    """With the loss of each group's tokens in one process, and its gradient."""

    @cached_property
    def references(self) -> list[Reference]:
        """For each group."""
        return [self._reference(members, "targets") for members in groups_of(self.case)]

    @cached_property
    def later(self) -> list[Reference]:
        """The same of the later targets."""
        return [self._reference(members, "later") for members in groups_of(self.case)]

    def _reference(self, members: list[int], which: str) -> Reference:
        targets, ignore = self.inputs[which][members], self.case.params["ignore"]
        logits = self.inputs["logits"][members].clone().requires_grad_()
        exact = logits if logits.dtype == torch.float64 else logits.float()
        count = int((targets != ignore).sum())
        total = F.cross_entropy(exact.flatten(0, -2), targets.flatten(), ignore_index=ignore, reduction="sum")
        loss = total / max(1, count)
        (gradient,) = torch.autograd.grad(WEIGHT * loss, logits)
        return loss.detach(), gradient, count


def _lose(rank: Rank) -> None:
    """Answers, of the first call, loss and early, the gradient of its own backward; and once all calls are
    over late, that loss again, and grad, the gradient of a backward of two losses' sum. Of the later targets
    evaluated, without a graph; frozen, of logits that need no gradient; second and grad.second, in that sum.
    Recordings forward, backward, of each, and `INFERENCE`. Fact changed.
    """
    group = enter_group(rank)
    given = as_views(rank.inputs) if rank.case.kind == "subgroup" else _copies(rank.inputs)
    leaf = given["logits"].requires_grad_()
    if rank.case.kind != "subgroup":
        given["logits"] = as_inside(leaf)
    with recorded_throughout(rank):
        handed = _lose_often(rank, group, given, leaf)
    tell_changed(rank, handed | {"logits": given["logits"].detach()})


def _lose_often(rank: Rank, group: dist.ProcessGroup, given: Inputs, leaf: Tensor) -> Inputs:
    """Returns the targets that were handed over, as they are now."""
    handed: Inputs = {}
    ignore = rank.params["ignore"]
    more = {} if ignore == IGNORED else {"ignore": ignore}

    def lose(logits: Tensor, which: str) -> Tensor:
        handed[which] = given[which].clone()  # of each call its own: targets that it changes cost once
        loss: Tensor = rank.student.sharded_loss(logits, handed[which], group, **more)
        return loss

    with rank.recording("forward"):
        loss = lose(given["logits"], "targets")
    rank.answer("loss", loss)
    with rank.attempt("gradient"):
        with rank.recording("backward"):
            (early,) = torch.autograd.grad(WEIGHT * loss, leaf, retain_graph=True)
        rank.answer("early", early)
    with torch.no_grad(), rank.recording(INFERENCE):
        evaluated = lose(given["logits"].detach(), "later")
    again = leaf.detach().clone().requires_grad_()
    with rank.recording("forward"):
        second = lose(as_inside(again), "later")
    with rank.recording("forward"):
        frozen = lose(given["logits"].detach(), "later")
    with _charged_once(rank), rank.recording("backward"):
        (WEIGHT * loss + WEIGHT * second).backward()
    for name, answer in {"late": loss, "evaluated": evaluated, "second": second, "frozen": frozen}.items():
        rank.answer(name, answer)
    rank.answer("grad", leaf.grad)
    rank.answer("grad.second", again.grad)
    return handed


def _charged_once(rank: Rank) -> contextlib.AbstractContextManager[None]:
    """An error where losses are summed costs gradients alone: in cases about others answers are missing."""
    return rank.attempt("gradient") if rank.case.kind == "values" else rank.expect_error("of a sum")


def _copies(inputs: Inputs) -> Inputs:
    return {name: tensor.clone() for name, tensor in inputs.items()}


def _is_the_mean(evidence: WholeLoss, answer: RankAnswer) -> Finding:
    return _mean_of(evidence.references, evidence, answer, "loss", "")


def _mean_of(
    references: Sequence[Reference], evidence: Evidence, answer: RankAnswer, name: str, what: str
) -> Finding:
    loss, _, count = references[place_of(evidence.case, answer.rank).index]
    told = f"the mean over the {count} targets of all ranks" if count else "0 where nobody has a target"
    return same(f"{what}{told}", loss, answer, name)


def _means_of_other_calls(evidence: WholeLoss) -> Iterator[Finding]:
    """What each call gave is its own, also when others have followed."""
    others = {
        "evaluated": "in a later call without a graph, ",
        "second": "in a second call with a graph, ",
        "frozen": "in a call whose logits need no gradient, ",
    }
    for answer in evidence.answers:
        for name, what in others.items():
            yield _mean_of(evidence.later, evidence, answer, name, what)
        told = "of the first call, read when others have followed, "
        yield _mean_of(evidence.references, evidence, answer, "late", told)


def _nothing_rounded(evidence: WholeLoss, answer: RankAnswer) -> Finding:
    """A token's loss rounded to bfloat16 is off by a thousandth, which few tokens show; a sum of float32 by
    2^-23 a token at the most, which leaves room enough to see one of many in bfloat16.
    """
    loss, _, count = evidence.references[place_of(evidence.case, answer.rank).index]
    expected, seen = float(loss), float(answer.tensors["loss"])
    told = f"{expected:.7g}, from losses and a sum in float32"
    off = (1e-5 + count * 2**-23) * max(1.0, expected)
    return Finding(abs(seen - expected) <= off, told, f"{seen:.7g}", answer.rank)


def _is_the_gradient(evidence: WholeLoss) -> Iterator[Finding]:
    for answer in evidence.answers:
        yield same(OWN_PART, _own_part(evidence.references, evidence, answer), answer, "early")


def _gradients_of_both(evidence: WholeLoss) -> Iterator[Finding]:
    """Each loss of a sum has a gradient of its own, whatever calls came between it and the backward."""
    for answer in evidence.answers:
        first, later = (_own_part(r, evidence, answer) for r in (evidence.references, evidence.later))
        yield same(f"{OWN_PART}, in a backward of two losses' sum", first, answer, "grad")
        yield same(f"{OWN_PART}, of the second loss of a sum", later, answer, "grad.second")


def _own_part(references: Sequence[Reference], evidence: Evidence, answer: RankAnswer) -> Tensor:
    place = place_of(evidence.case, answer.rank)
    return references[place.index][1][place.position]


def _gradient_about(evidence: WholeLoss) -> Iterator[Finding]:
    """Of 16 bits."""
    for answer in evidence.answers:
        expected = _own_part(evidence.references, evidence, answer)
        for name in ("grad", "early"):
            seen = answer.tensors.get(name)
            yield in_proportion("gradient of the logits", [expected], [seen], answer.rank)


def _sends_two_numbers(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    for name in (*answer.earlier("forward"), "forward", INFERENCE):
        calls = calls_of(answer, name)
        sent = sum(num_bytes for _, num_bytes in calls)
        told = f"{name}: at most {MOST_BYTES} bytes for a sum and a number of targets"
        yield Finding(sent <= MOST_BYTES, told, calls_text(calls), answer.rank)
        numbers = [_numbers_in(call) for call in each_once(answer.collectives[name])]
        told = f"{name}: a sum and a number of targets, in one call or two"
        seen = f"calls of {', '.join(map(str, numbers))} numbers"
        yield Finding(max(numbers, default=0) <= 2, told, seen, answer.rank)
    for name in (*answer.earlier("backward"), "backward"):
        after = calls_of(answer, name)
        yield Finding(not after, "backward: no communication", calls_text(after), answer.rank)


def _numbers_in(call: Mapping[str, Any]) -> int:
    """Of one rank; a barrier has none."""
    return int(call["num_bytes"]) // max(1, dtype_bytes(call["dtype"]))


def _in_the_calls(evidence: Evidence) -> Iterator[Finding]:
    return (f for answer in evidence.answers for f in _sends_two_numbers(evidence, answer))


_two_numbers = every(_in_the_calls, single_numbers_between(0))


LOST = Run(_lose, _inputs, own_entry, WholeLoss)
MEANS = every(on_each(_is_the_mean), _means_of_other_calls)
GRADIENTS = every(_is_the_gradient, _gradients_of_both)
BOTH = every(on_each(_is_the_mean), _is_the_gradient)
ELSEWHERE = ("without", "nobody", "subgroup", "alone")
EXERCISE = Exercise(
    "11.sharded-loss",
    "One loss over a divided sequence",
    ("sharded_loss",),
    dict.fromkeys(("values", "bfloat16", *ELSEWHERE), LOST),
    _cases,
    (
        Property(
            "loss",
            "numbers",
            2,
            "Every rank has the mean over all targets of the group; what was given is as it was.",
            "a mean of the ranks' means, or a division by tokens that have no target",
            {"values": every(MEANS, on_each(unchanged))},
            {"bfloat16": MEANS, **dict.fromkeys(ELSEWHERE, _means_of_other_calls)},
        ),
        Property(
            "gradient",
            "numbers",
            2,
            "A rank's gradient is its part of the whole's: the parts of all ranks add up.",
            "divided by the rank's own targets, or n times too large",
            {"values": GRADIENTS},
            {"bfloat16": _gradient_about, **dict.fromkeys(ELSEWHERE, _gradients_of_both)},
        ),
        Property(
            "two-numbers",
            "mechanism",
            2,
            "Only a sum and a number of targets are sent, and in backward nothing.",
            "logits, or a loss for each token, were gathered",
            {"values": _two_numbers},
            dict.fromkeys(("bfloat16", *ELSEWHERE), _two_numbers),
        ),
        Property(
            "without",
            "robustness",
            2,
            "A rank without targets has the same loss, and a gradient of zeros.",
            "the mean over nothing is not a number, and stays none when it is added",
            {"without": BOTH},
        ),
        Property(
            "nobody",
            "robustness",
            1,
            "Where nobody has a target the loss is 0.",
            "a division by no targets, on one rank alone too",
            {"nobody": BOTH},
        ),
        Property(
            "bfloat16",
            "robustness",
            1,
            "Logits of 16 bits give a loss that was computed and summed in float32.",
            "bfloat16 has 8 bits for a number: above 256 it cannot even count",
            {"bfloat16": every(on_each(_is_the_mean), on_each(_nothing_rounded))},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, on one rank alone, and on views of tensors.",
            "no group was handed on",
            {"subgroup": every(BOTH, stays_in_group), "alone": BOTH},
        ),
    ),
    forbids=("torch.distributed.nn.functional.all_reduce",),
)
