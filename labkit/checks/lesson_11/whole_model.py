"""What a GPT with divided sequences must show: one training on replicas, pieces of sequences and heads, equal
to that of one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_11.between import recorded_throughout
from labkit.checks.lesson_11.divided_gpt import (
    gpt_cases,
    gpt_inputs,
    grid_of,
    hand_part,
    plain_model,
    spot_of,
)
from labkit.checks.lesson_11.gpt_traffic import EVALUATION, MAKING, evaluated_tokens, traffic
from labkit.checks.lesson_11.one_process import OneProcess
from labkit.checks.lesson_11.ring import TORCHS_OWN
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import STEPS, descend, holds_only, nbytes, on_each, same
from labkit.checks.shared.holding import held_since, holding
from labkit.checks.shared.leaving import numbers_given
from labkit.checks.shared.split import loaded, under
from labkit.model import Transformer

WHAT = {  # of what is compared, beside the gradients of steps
    "trained": "value after training of",
    f"grad.{STEPS}": "where a second loss and one without a graph come before backward: gradient of",
}

# -- on a rank


def _groups(rank: Rank) -> list[dist.ProcessGroup]:
    """This rank's context, tensor and batch group. Every rank makes all of them, as torch asks."""
    grid = grid_of(rank.case)
    kinds = grid.transpose(1, 2).flatten(0, 1), grid.flatten(0, 1), grid.flatten(0, 1).T
    made = [[(ranks, dist.new_group(ranks)) for ranks in kind.tolist()] for kind in kinds]
    return [next(group for ranks, group in kind if rank.rank in ranks) for kind in made]


def _train(rank: Rank) -> None:
    """Answers loss.STEP, grad.STEP.NAME, trained.NAME; recordings forward, backward and sums (of gradients)
    of each step, `EVALUATION` and `MAKING`. Facts held_bytes, of the rank's part when it was made, of a whole
    model that is there afterwards or is not, and changed: what is no longer as it was in the whole model.
    Before, another model is made, of other groups; afterwards this one is evaluated on one sequence, of
    another length, and on the shortest sequence: answer shortest. Then loss.STEPS and grad.STEPS.NAME, of a
    loss that others follow before its backward; and the last tokens with a graph once more, with weights of
    0: answer even.
    """
    context, tensor, batch = _groups(rank)
    by_itself = _bytes_held(rank, lambda: _whole(rank), context, tensor, batch)[1]
    full = _whole(rank)
    given = _held(full)
    with rank.recording(MAKING):
        model, beside_it = _bytes_held(rank, lambda: full, context, tensor, batch)
    rank.fact("held_bytes", max(by_itself, beside_it))
    other_model = rank.student.ContextParallelGPT(full, tensor, tensor, tensor)
    with recorded_throughout(rank):
        _steps(rank, model)
    before, held = under("full.", rank.inputs), _held(full)
    other = {n for n, p in full.named_parameters() if not torch.equal(p, before[n])}
    del other_model
    other |= {n for n in given.keys() | held.keys() if given.get(n, given) is not held.get(n, held)}
    rank.fact("changed", sorted(other))


def _whole(rank: Rank) -> Transformer:
    """The whole model as a rank is handed it."""
    full = plain_model(rank.case).to(rank.device)
    loaded(full, under("full.", rank.inputs))
    full.train(not rank.params["evaluated"])
    return full


def _bytes_held(rank: Rank, whole: Callable[[], Transformer], *groups: dist.ProcessGroup) -> tuple[Any, int]:
    """A part of a whole model, and the bytes that are there because of it."""
    before = holding()  # collects first: a model of an earlier case may hold itself
    with numbers_given() as read:
        model = rank.student.ContextParallelGPT(whole(), *groups)
    return model, held_since(before) + read.kept_bytes


def _steps(rank: Rank, model: Any) -> None:
    for step in range(STEPS):
        model.zero_grad(set_to_none=not rank.params["zeroed"])
        loss = _loss_of(rank, model, step)
        _differentiate(rank, model, loss, step)
        rank.answer(f"loss.{step}", loss)
        descend(model)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        rank.answer(f"trained.{name}", parameter)
    *afterwards, between = evaluated_tokens(rank.inputs["ids"].shape[-1])
    with rank.attempt("losses"):
        for tokens in afterwards:
            loss = _evaluate(rank, model, tokens)
        rank.answer("shortest", loss)
    with rank.attempt("gradients"):
        model.zero_grad(set_to_none=not rank.params["zeroed"])
        loss, _ = (_loss_of(rank, model, step) for step in range(STEPS))
        _evaluate(rank, model, between)
        _differentiate(rank, model, loss, STEPS)
        rank.answer(f"loss.{STEPS}", loss)
    with rank.attempt("losses"), torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        with torch.enable_grad(), rank.recording("with weights of 0"):
            loss = _called(rank, model, STEPS - 1)
        rank.answer("even", loss)


def _loss_of(rank: Rank, model: Any, step: int) -> Tensor:
    with rank.recording("forward"):
        return _called(rank, model, step)


def _called(rank: Rank, model: Any, step: int) -> Tensor:
    loss: Tensor = model.loss(rank.inputs["ids"][step].clone(), rank.inputs["targets"][step].clone())
    return loss


def _differentiate(rank: Rank, model: Any, loss: Tensor, step: int) -> None:
    with rank.recording("backward"):
        loss.backward()
    with rank.recording("sums"):
        model.sum_gradients()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        rank.answer(f"grad.{step}.{name}", parameter.grad)


def _evaluate(rank: Rank, model: Any, tokens: int) -> Tensor:
    """The loss of one sequence of each replica: the first `tokens` of every rank."""
    given = (rank.inputs[name][0, :1, :tokens].clone() for name in ("ids", "targets"))
    with torch.no_grad(), rank.recording(EVALUATION):
        loss: Tensor = model.loss(*given)
        return loss


def _held(model: nn.Module) -> dict[str, object]:
    """What the modules of a model hold by name, such as functions, hooks and switches; of dictionaries each
    entry.
    """
    found: dict[str, object] = {f"{n}.requires_grad": p.requires_grad for n, p in model.named_parameters()}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            entries = value.items() if isinstance(value, dict) else [("", value)]
            found |= {f"{name}.{key}.{entry}".strip("."): held for entry, held in entries}
    return found


# -- in the judge


def _losses(evidence: OneProcess) -> Iterator[Finding]:
    for answer in evidence.answers:
        for step in range(STEPS):
            told = f"step {step}: the mean over all targets of the batch"
            yield same(told, evidence.losses[step], answer, f"loss.{step}")
        if evidence.shortest is not None:
            told = "after training, in a call with one row and fewer tokens: the mean over all targets"
            yield same(told, evidence.shortest, answer, "shortest")


def _told_anew(evidence: OneProcess) -> Iterator[Finding]:
    told = "of tokens that had a loss before, with weights that are all 0 now: log V"
    for answer in evidence.answers:
        even = torch.full_like(evidence.losses[-1], math.log(evidence.case.params["vocabulary"]))
        yield same(told, even, answer, "even")


def _loss_among_others(evidence: OneProcess, answer: RankAnswer) -> Finding:
    told = "a loss, read when two others have followed: the mean over all targets of its batch"
    return same(told, evidence.losses[STEPS], answer, f"loss.{STEPS}")


def _states(*kinds: str) -> Judge:
    """What ranks have of these states is their part of the one process's."""

    def judge(evidence: OneProcess) -> Iterator[Finding]:
        for answer in evidence.answers:
            for kind in kinds:
                what = WHAT.get(kind, f"step {kind[-1]}: gradient of")
                for name, expected in spot_of(evidence.case, answer.rank).cut(evidence.states[kind]).items():
                    told = f"{what} {name} in one process"
                    yield same(told, expected, answer, f"{kind}.{name}")

    return judge


def _left_alone(evidence: Evidence, answer: RankAnswer) -> Finding:
    changed = answer.facts["changed"]
    return Finding(not changed, "`full` as it was given", f"changed: {', '.join(changed)}", answer.rank)


def _holds_its_part(evidence: OneProcess, answer: RankAnswer) -> Finding:
    full = evidence.states["trained"]
    share, whole = (
        sum(map(nbytes, state.values())) for state in (spot_of(evidence.case, answer.rank).cut(full), full)
    )
    return holds_only(share, whole, answer)


TRAINED = Run(_train, gpt_inputs, hand_part, OneProcess)
GRADIENTS = _states(*(f"grad.{step}" for step in range(STEPS)))
ALL = every(_losses, GRADIENTS, _states("trained"))
TRAFFIC = traffic(GRADIENTS)
AMONG_OTHERS = every(on_each(_loss_among_others), _states(f"grad.{STEPS}"))
EXERCISE = Exercise(
    "11.context-parallel-gpt",
    "A whole model on divided sequences",
    ("ContextParallelGPT",),
    dict.fromkeys(("values", "tensor", "without", "own-parts"), TRAINED),
    gpt_cases,
    (
        Property(
            "losses",
            "numbers",
            1,
            "In each of two steps, and in a shorter call after them, every rank has the mean over all"
            " targets of the batch.",
            "positions were counted from 0 on every rank",
            {"values": every(_losses, _told_anew)},
        ),
        Property(
            "gradients",
            "numbers",
            4,
            "All gradients are those of the whole batch in one process.",
            "averaged over the ranks of a sequence, each of which has a part of one sum; not summed over"
            " replicas with whole sequences; or something of a loss kept where the next one writes over it",
            {"values": every(GRADIENTS, AMONG_OTHERS)},
            dict.fromkeys(("tensor", "without", "own-parts"), AMONG_OTHERS),
        ),
        Property(
            "weights",
            "numbers",
            1,
            "So are the weights after two steps, and `full` is left alone.",
            "a table and its tied head became two",
            {"values": every(_states("trained"), on_each(_left_alone))},
        ),
        Property(
            "tensor",
            "numbers",
            3,
            "The same with the heads of each block cut over a second axis.",
            "gradients were summed over ranks that have other parts, or have the same tokens",
            {"tensor": every(ALL, on_each(_holds_its_part))},
        ),
        Property(
            "traffic",
            "mechanism",
            3,
            "Between pieces of a sequence go keys, values and their gradients; weights' gradients are summed"
            " once.",
            "hidden states or ids were gathered, or gradients summed over two groups one after the other",
            {"values": TRAFFIC, "tensor": TRAFFIC},
            {"without": TRAFFIC, "own-parts": TRAFFIC},
        ),
        Property(
            "without",
            "robustness",
            1,
            "A rank without targets takes part like the others.",
            "a mean over no targets is not a number",
            {"without": ALL},
        ),
        Property(
            "own-parts",
            "numbers",
            1,
            "With your own ring, cut and loss it is the same.",
            "an earlier exercise of yours does something else than it was asked for",
            {"own-parts": ALL},
        ),
    ),
    builds_on=(
        "11.merge-partials",
        "11.block-backward",
        "11.own-tokens",
        "11.ring-forward",
        "11.ring-attention",
        "11.sharded-loss",
    ),
    forbids=(*TORCHS_OWN, "torch.nn.parallel.DistributedDataParallel"),
)
