"""What `07.vocab-parallel-cross-entropy` must show: a loss whose logits are cut by the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_07.modules import INFERENCE, PAIRS, TORCHS_OWN, any_layout, case_maker, subgroup
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import (
    calls_are,
    calls_of,
    calls_text,
    is_refused,
    same,
    stays_in_group,
)
from labkit.checks.shared.calls_inside import INSIDE
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.places import Place, enter_group, groups_of, place_of
from labkit.checks.shared.split import drawn, dtype_of, in_another_order

LOSS_ID = "07.vocab-parallel-cross-entropy"
MOST_NUMBERS = 5  # a token: the largest logit, the target's, the sum of exponentials, and room for two more
MOST_CALLS = 5
PADDED_OR_SMOOTHED = ("uneven", "smoothed", "both")
FAR_BELOW = -3e4  # added to logits: what fills columns as "small enough" is larger
BEYOND = 1e4  # in the columns that do not exist, unless a case says "nan" or "inf": counting them shows

WRONG_TARGETS = ("too large", "negative", "just below", "ignored by default")
loss_case = case_maker(batch=2, sequence=5, vocabulary=12)


def _cases(seed: int) -> list[Case]:
    return [
        loss_case("12 tokens", "values", 2, seed, times=-1.5, late=[0]),
        loss_case("11 tokens", "uneven", 2, seed, vocabulary=11),
        loss_case("logits far below zero", "uneven", 2, seed, vocabulary=11, shift=FAR_BELOW),
        loss_case("some ignored", "ignored", 2, seed),
        loss_case("another ignore_index", "ignored", 2, seed, ignore_index=3),
        loss_case("some ignored, smoothed", "both", 2, seed, vocabulary=11, label_smoothing=0.3),
        loss_case("ignored ones beyond the vocabulary", "ignored", 2, seed, scale=900.0, ignore_index=12),
        loss_case("views", "layout", 2, seed),
        loss_case("smoothed", "smoothed", 2, seed, label_smoothing=0.2),
        loss_case("large logits", "large", 2, seed, scale=900.0),
        loss_case("bfloat16", "bfloat16", 2, seed, dtype="bfloat16"),
        loss_case("targets outside", "wrong-targets", 2, seed, vocabulary=11),
        loss_case("24 tokens", "values", 4, seed, vocabulary=24, times=2.0),
        loss_case("all targets on rank 2", "owner", 4, seed, owner=2),
        loss_case("5 tokens: a rank without any", "uneven", 4, seed, vocabulary=5),
        loss_case("smoothed and padded", "smoothed", 4, seed, vocabulary=10, label_smoothing=0.1),
        loss_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


# -- what a rank is handed, and does


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each group: logits [b, s, V] whose largest columns are in different blocks, and targets [b, s]."""
    p = case.params
    shape = (len(groups_of(case)), p["batch"], p["sequence"])
    logits = p.get("scale", 3.0) * drawn(case, generator, *shape, p["vocabulary"]) + p.get("shift", 0.0)
    targets = torch.randint(p["vocabulary"], shape, generator=generator)
    rows = -(-p["vocabulary"] // len(groups_of(case)[0]))
    if "owner" in p:
        targets = p["owner"] * rows + targets % min(rows, p["vocabulary"] - p["owner"] * rows)
    else:
        edges = [e for r in range(p["vocabulary"] // rows + 1) for e in (r * rows, r * rows + rows - 1)]
        edges = [e for e in edges if e < p["vocabulary"]][: p["batch"] * p["sequence"]]
        targets.view(shape[0], -1)[:, : len(edges)] = torch.tensor(edges)
    return {"logits": logits.to(dtype_of(case)), "targets": targets}


def _some_ignored(case: Case, generator: torch.Generator) -> Inputs:
    found = _inputs(case, generator)
    found["targets"].view(len(groups_of(case)), -1)[:, 1::3] = case.params.get("ignore_index", -100)
    return found


def _hand(case: Case, inputs: Inputs, rank: int) -> Inputs:
    place = place_of(case, rank)
    beyond = float(case.params.get("beyond", BEYOND))
    logits = _own_columns(case, inputs["logits"][place.index], place, beyond)
    return {"logits": logits, "targets": inputs["targets"][place.index]}


def _own_columns(case: Case, logits: Tensor, place: Place, beyond: float) -> Tensor:
    """A rank's ceil(V / t) columns; beyond: what fills those beyond the vocabulary."""
    columns = -(-case.params["vocabulary"] // place.size)
    padded = F.pad(logits, (0, columns * place.size - case.params["vocabulary"]), value=beyond)
    return padded[..., place.position * columns : (place.position + 1) * columns].clone()


def _options(case: Case) -> dict[str, Any]:
    """What the case says beside the four arguments that are always given."""
    return {name: case.params[name] for name in ("ignore_index", "label_smoothing") if name in case.params}


def _ask(rank: Rank, view: Callable[[Tensor], Tensor] = torch.clone) -> None:
    """Asks for the loss, for another one, and for the gradients of the first.

    Answers: loss, grad; and without gradients: evaluated, and asked, whether the logits of that call ask for
    a gradient afterwards; as "... after", what was handed over, and data, the logits of that call.
    Recordings: forward, backward, `INFERENCE`; and plain, of a call without options and padding, where there
    are some. And what `_ask_inside` answers.
    Where there is padding, another vocabulary in as many columns comes first. view: copies what is handed
    over, perhaps in another layout.
    """
    group, logits = enter_group(rank), view(rank.inputs["logits"]).requires_grad_()
    targets = view(rank.inputs["targets"])
    ask, vocabulary = rank.student.vocab_parallel_cross_entropy, rank.params["vocabulary"]
    full = logits.shape[-1] * group.size()
    if rank.case.kind == "uneven" and vocabulary - 1 > full - group.size():
        ask(logits.detach(), targets.clamp(max=vocabulary - 2), vocabulary - 1, group)
    with rank.recording("forward"):
        loss = ask(logits, targets, vocabulary, group, **_options(rank.case))
    rank.answer("loss", loss)
    ask((1 - logits.detach()).requires_grad_(), targets, vocabulary, group, **_options(rank.case))
    if rank.case.kind in PADDED_OR_SMOOTHED:
        with rank.recording("plain"):
            ask(logits.detach().clone().requires_grad_(), targets, full, group)
        with rank.recording(f"plain, {INSIDE}"):
            ask(as_inside(logits.detach().clone().requires_grad_()), targets, full, group)
    with rank.attempt("gradients"), rank.recording("backward"):
        (loss * rank.params.get("times", 1.0)).backward()
    rank.answer("grad", logits.grad)
    _ask_inside(rank, logits, lambda made: ask(made, targets, vocabulary, group, **_options(rank.case)))
    data = logits.detach().clone()
    with torch.no_grad(), rank.recording(INFERENCE):
        loss = ask(data, targets, vocabulary, group, **_options(rank.case))
    rank.answer("evaluated", loss)
    rank.answer("asked", torch.tensor(data.requires_grad))
    for name, tensor in {"logits": logits, "data": data, "targets": targets}.items():
        rank.answer(f"{name} after", _finite(tensor))


def _ask_inside(rank: Rank, logits: Tensor, ask: Callable[[Tensor], Tensor]) -> None:
    """Asks for the loss and the gradient of logits that another operation has made. Answers: loss, grad and
    logits after, of these. Recordings: forward and backward.
    """
    leaf = logits.detach().clone().requires_grad_()
    made = as_inside(leaf)
    with rank.recording(f"forward, {INSIDE}"):
        loss = ask(made)
    rank.answer(f"loss, {INSIDE}", loss)
    with rank.attempt("gradients"), rank.recording(f"backward, {INSIDE}"):
        (loss * rank.params.get("times", 1.0)).backward()
    rank.answer(f"grad, {INSIDE}", leaf.grad)
    rank.answer("made after", _finite(made))


def _finite(tensor: Tensor) -> Tensor:
    """The same numbers, which can be compared, with `BEYOND` for what is none."""
    return tensor.detach().nan_to_num(BEYOND, BEYOND) if tensor.is_floating_point() else tensor


def _ask_for_wrong_targets(rank: Rank) -> None:
    """Facts: one for each of WRONG_TARGETS."""
    group, logits = enter_group(rank), rank.inputs["logits"].clone().requires_grad_()
    ask, vocabulary = rank.student.vocab_parallel_cross_entropy, rank.params["vocabulary"]
    targets = rank.inputs["targets"].clone()
    for name, wrong in zip(WRONG_TARGETS, (vocabulary, -7, -1, -100), strict=True):
        targets[-1, -1] = wrong
        with rank.expect_error(name):
            ask(logits, targets, vocabulary, group, **({"ignore_index": -2} if wrong == -100 else {}))


# -- judges


@dataclass(frozen=True)
class LossEvidence(Evidence):
    """Answers, to be held against F.cross_entropy of the whole logits."""

    @cached_property
    def references(self) -> list[tuple[Tensor, Tensor]]:
        """For each group the loss, and the gradient of the whole logits."""
        return [self._reference(index) for index in range(len(groups_of(self.case)))]

    def _reference(self, index: int) -> tuple[Tensor, Tensor]:
        logits = self.inputs["logits"][index].clone().requires_grad_()
        lifted = logits if logits.dtype == torch.float64 else logits.float()
        targets = self.inputs["targets"][index].flatten()
        loss = F.cross_entropy(lifted.flatten(0, 1), targets, **_options(self.case))
        (loss * self.case.params.get("times", 1.0)).backward()
        assert logits.grad is not None
        return loss.detach(), logits.grad


def _right_loss(evidence: LossEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        loss, _ = evidence.references[place_of(evidence.case, answer.rank).index]
        yield same("F.cross_entropy of the whole logits", loss, answer, "loss")
        yield same("the same without gradients", loss, answer, "evaluated")
        yield same("the same of logits that are no leaf", loss, answer, f"loss, {INSIDE}")


def _right_gradients(evidence: LossEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        place = place_of(evidence.case, answer.rank)
        expected = _own_columns(evidence.case, evidence.references[place.index][1], place, 0.0)
        told = "this rank's columns of the gradient of the whole logits"
        yield same(told, expected, answer, "grad")
        yield same(f"{told}, which are no leaf", expected, answer, f"grad, {INSIDE}")


def _handed_over_kept(evidence: LossEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        given = _hand(evidence.case, evidence.inputs, answer.rank)
        logits, targets = _finite(given["logits"]), given["targets"]
        yield same("the logits as they were handed over", logits, answer, "logits after")
        yield same("the same of logits that need no gradient", logits, answer, "data after")
        yield same("the same of logits that are no leaf", logits, answer, "made after")
        yield same("the targets as they were handed over", targets, answer, "targets after")


def _asks_nothing(evidence: LossEvidence) -> Iterator[Finding]:
    told = "whether logits ask for a gradient afterwards, which did not"
    return (same(told, torch.tensor(False), answer, "asked") for answer in evidence.answers)


def _few_numbers(evidence: LossEvidence) -> Iterator[Finding]:
    """Only all_reduces of a few numbers, in forward, also of logits that are no leaf, and the same without
    gradients. A group of one may communicate or not.
    """
    for answer in evidence.answers:
        if place_of(evidence.case, answer.rank).size == 1:
            continue
        for phase in ("forward", f"forward, {INSIDE}", INFERENCE):
            calls = calls_of(answer, phase)
            told = f"{phase}: all_reduces of a few numbers a token, at most {_room(evidence):,} bytes"
            yield Finding(_are_few(evidence, calls), told, f"{phase}: {calls_text(calls)}", answer.rank)
        yield calls_are(INFERENCE, calls_of(answer, "forward"), answer)
        for phase in ("backward", f"backward, {INSIDE}"):
            yield calls_are(phase, [], answer)


def _room(evidence: LossEvidence) -> int:
    """Bytes that a few numbers a token may take."""
    return MOST_NUMBERS * evidence.inputs["targets"][0].numel() * 8


def _are_few(evidence: LossEvidence, calls: Sequence[tuple[str, int]]) -> bool:
    sums = {op for op, _ in calls} == {"all_reduce"}
    return sums and len(calls) <= MOST_CALLS and sum(n for _, n in calls) <= _room(evidence)


def _few_here_too(evidence: LossEvidence) -> Iterator[Finding]:
    """Smoothing and padding are no reason to send logits. Who always sends them loses other points for it."""
    for answer in evidence.answers:
        alone = place_of(evidence.case, answer.rank).size == 1
        for phase, plain in {"forward": "plain", f"forward, {INSIDE}": f"plain, {INSIDE}"}.items():
            always = not _are_few(evidence, calls_of(answer, plain))
            calls = calls_of(answer, phase)
            told = f"{phase}: a few numbers a token, at most {_room(evidence):,} bytes, as without them"
            few = alone or always or _are_few(evidence, calls)
            yield Finding(few, told, f"{phase}: {calls_text(calls)}", answer.rank)


LOSS_AND_GRADIENTS: Judge = every(_right_loss, _right_gradients)
_ASKED = Run(_ask, _inputs, _hand, LossEvidence)
EXERCISE = Exercise(
    LOSS_ID,
    "A loss without whole logits",
    ("vocab_parallel_cross_entropy",),
    {
        "values": _ASKED,
        "owner": _ASKED,
        "uneven": _ASKED,
        "ignored": Run(_ask, _some_ignored, _hand, LossEvidence),
        "both": Run(_ask, _some_ignored, _hand, LossEvidence),
        "layout": Run(partial(_ask, view=in_another_order), _inputs, _hand, LossEvidence),
        "smoothed": _ASKED,
        "large": _ASKED,
        "bfloat16": _ASKED,
        "wrong-targets": Run(_ask_for_wrong_targets, _inputs, _hand),
        "subgroup": _ASKED,
    },
    _cases,
    (
        Property(
            "loss-value",
            "numbers",
            3,
            "Every rank has the mean loss of all tokens.",
            "the maximum, the sum of exponentials or the target's logit was not reduced over the ranks",
            {"values": _right_loss},
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "Each rank has its columns of the gradient: softmax minus one at the target; what was handed over"
            " stays.",
            "a sum was taken of what is detached, or its gradient summed or divided over the ranks: g's"
            " backward is the identity",
            {"values": every(_right_gradients, _handed_over_kept, _asks_nothing)},
        ),
        Property(
            "scalars-only",
            "mechanism",
            8,
            "A few numbers a token are sent, in forward only, without gradients the same.",
            "the logits were gathered: that is V numbers a token",
            {"values": _few_numbers},
            dict.fromkeys(("owner", "ignored", "layout", "large", "bfloat16", "subgroup"), _few_numbers),
        ),
        Property(
            "one-owner",
            "robustness",
            1,
            "All targets may lie on one rank.",
            "the other ranks must add zero, not logit 0",
            {"owner": LOSS_AND_GRADIENTS},
        ),
        Property(
            "uneven-vocabulary",
            "robustness",
            2,
            "Columns beyond the vocabulary are as if they were not there.",
            "they take part in the maximum or the sum of exponentials; set them to -inf",
            {"uneven": every(LOSS_AND_GRADIENTS, _handed_over_kept, _few_here_too)},
        ),
        Property(
            "ignore-index",
            "numbers",
            2,
            "Tokens to be ignored count neither in the sum nor in the mean.",
            "the mean is over the tokens that count; -100 is not a wrong target",
            {"ignored": LOSS_AND_GRADIENTS},
        ),
        Property(
            "label-smoothing",
            "numbers",
            2,
            "Label smoothing spreads over the whole vocabulary, and leaves ignored tokens out.",
            "the mean over this rank's columns, or over padded ones, instead of over all V",
            dict.fromkeys(("smoothed", "both"), every(LOSS_AND_GRADIENTS, _few_here_too)),
        ),
        Property(
            "large-logits",
            "robustness",
            2,
            "Logits in the hundreds, largest on different ranks, neither overflow nor vanish.",
            "each rank took its own maximum: exponentials must be relative to one maximum for all",
            {"large": LOSS_AND_GRADIENTS},
        ),
        Property(
            "low-precision",
            "robustness",
            1,
            "16-bit logits are computed with as float32.",
            "lift them before exp",
            {"bfloat16": LOSS_AND_GRADIENTS},
        ),
        Property(
            "wrong-targets",
            "robustness",
            1,
            "A target outside the vocabulary is a ValueError on every rank.",
            "no rank owns it, so that the loss is silently too large",
            {"wrong-targets": every(*(is_refused(name, "ValueError") for name in WRONG_TARGETS))},
        ),
        any_layout(LOSS_AND_GRADIENTS),
        subgroup(every(LOSS_AND_GRADIENTS, stays_in_group)),
    ),
    forbids=TORCHS_OWN,
)
