"""The check of `vocab_parallel_cross_entropy`: a loss whose logits are cut by the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.lesson_07.trial import calls_of, refused
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.places import Place, enter_group, groups_of, place_of
from labkit.checks.shared.sharded_evidence import calls_text, compared, finding, within_group
from labkit.checks.shared.sharded_layer import charged, drawn, dtype_of

MOST_NUMBERS = 5  # a token: the largest logit, the target's, the sum of exponentials, and room for two more
MOST_CALLS = 5
BEYOND = 1e4  # what the logits of columns that do not exist hold: large, so that counting them shows


def loss_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each group: logits [b, s, V] whose largest columns are in different blocks, and targets [b, s]."""
    p = case.params
    shape = (len(groups_of(case)), p["batch"], p["sequence"])
    logits = p.get("scale", 3.0) * drawn(case, generator, *shape, p["vocabulary"])
    targets = torch.randint(p["vocabulary"], shape, generator=generator)
    rows = -(-p["vocabulary"] // len(groups_of(case)[0]))
    if "owner" in p:
        targets = p["owner"] * rows + targets % min(rows, p["vocabulary"] - p["owner"] * rows)
    else:
        edges = [e for r in range(p["vocabulary"] // rows + 1) for e in (r * rows, r * rows + rows - 1)]
        edges = [e for e in edges if e < p["vocabulary"]][: p["batch"] * p["sequence"]]
        targets.view(shape[0], -1)[:, : len(edges)] = torch.tensor(edges)
    if p["kind"] == "ignored":
        targets.view(shape[0], -1)[:, 1::3] = p.get("ignore_index", -100)
    return {"logits": logits.to(dtype_of(case)), "targets": targets}


def _own_columns(case: Case, logits: Tensor, place: Place) -> Tensor:
    """A rank's ceil(V / t) columns, those beyond the vocabulary filled with what nobody should look at."""
    columns = -(-case.params["vocabulary"] // place.size)
    padded = F.pad(logits, (0, columns * place.size - case.params["vocabulary"]), value=BEYOND)
    return padded[..., place.position * columns : (place.position + 1) * columns].clone()


def _options(case: Case) -> dict[str, Any]:
    """What the case says beside the four arguments that are always given."""
    return {name: case.params[name] for name in ("ignore_index", "label_smoothing") if name in case.params}


def loss_on_rank(rank: Rank) -> None:
    """Ask for the loss and its gradient, or for that of targets outside the vocabulary."""
    group, place, case = enter_group(rank), place_of(rank.case, rank.rank), rank.case
    ask, vocabulary = rank.student.vocab_parallel_cross_entropy, case.params["vocabulary"]
    whole, targets = rank.inputs["logits"][place.index], rank.inputs["targets"][place.index].clone()
    logits = _own_columns(case, whole, place).requires_grad_()
    if case.params["kind"] == "wrong-targets":
        for name, wrong in (("too large", vocabulary), ("negative", -7)):
            targets[-1, -1] = wrong
            with rank.expect_error(name):
                ask(logits, targets, vocabulary, group)
        return
    with rank.recording("forward"):
        loss = ask(logits, targets, vocabulary, group, **_options(case))
    rank.answer("loss", loss)
    with rank.attempt(charged(case, "gradients")), rank.recording("backward"):
        (loss * case.params.get("times", 1.0)).backward()
    rank.answer("grad", logits.grad)
    rank.answer("logits after", logits)


def _reference(case: Case, inputs: Inputs, index: int) -> tuple[Tensor, Tensor]:
    """The loss, and the gradient of the whole logits, by F.cross_entropy."""
    logits = inputs["logits"][index].clone().requires_grad_()
    lifted = logits if logits.dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(lifted.flatten(0, 1), inputs["targets"][index].flatten(), **_options(case))
    (loss * case.params.get("times", 1.0)).backward()
    assert logits.grad is not None
    return loss.detach(), logits.grad


def judge_loss(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Compare with F.cross_entropy of the whole logits."""
    kind = case.params["kind"]
    if kind == "wrong-targets":
        for name in ("too large", "negative"):
            yield from refused("wrong-targets", answers, name, ["ValueError", "IndexError"])
        return
    for answer in answers:
        place = place_of(case, answer.rank)
        loss, gradient = _reference(case, inputs, place.index)
        about = charged(case, "loss-value")
        yield compared(about, "F.cross_entropy of the whole logits", loss, answer, "loss")
        expected = _own_columns(case, gradient, place)
        real = expected.masked_fill(expected == BEYOND, 0.0)
        told = "this rank's columns of the gradient of the whole logits"
        yield compared(charged(case, "gradients"), told, real, answer, "grad")
        if "scalars-only" in case.properties:
            given = _own_columns(case, inputs["logits"][place.index], place)
            yield compared("gradients", "the logits as they were handed over", given, answer, "logits after")
            yield from _scalars(case, inputs, answer)
        if kind == "subgroup":
            yield within_group("subgroup", case, answer)


def _scalars(case: Case, inputs: Inputs, answer: RankAnswer) -> Iterator[Finding]:
    tokens = inputs["targets"][0].numel()
    room = MOST_NUMBERS * tokens * 8
    calls = calls_of(answer, "forward")
    few = (
        len(calls) <= MOST_CALLS
        and {op for op, _ in calls} == {"all_reduce"}
        and sum(n for _, n in calls) <= room
    )
    told = f"forward: all_reduces of a few numbers a token, at most {room:,} bytes"
    yield finding("scalars-only", few, told, f"forward: {calls_text(calls)}", answer)
    later = calls_of(answer, "backward")
    seen = f"backward: {calls_text(later)}"
    yield finding("scalars-only", not later, "backward: no communication", seen, answer)
