"""What a GPT with divided sequences must show: one training on replicas, pieces of sequences and heads, equal
to that of one process."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_11.between import recorded_throughout, single_numbers_between
from labkit.checks.lesson_11.divided_gpt import (
    Spot,
    gpt_cases,
    gpt_inputs,
    grid_of,
    hand_part,
    plain_model,
    spot_of,
)
from labkit.checks.lesson_11.losses import IGNORED, MOST_BYTES
from labkit.checks.lesson_11.ring import TORCHS_OWN
from labkit.checks.lesson_11.tokens import zigzag
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import STEPS, State, calls_text, descend, holds_only, nbytes, on_each, same
from labkit.checks.shared.holding import held_since, holding
from labkit.checks.shared.leaving import numbers_given
from labkit.checks.shared.split import dtype_of, loaded, under
from labkit.checks.shared.sums import SHARES, summed_bytes
from labkit.checks.shared.twins import each_once

EVALUATION = "without gradients"  # what is recorded of calls without a graph
SHORTEST = 2  # as many tokens of each rank are the least that can be cut

# -- on a rank


def _groups(rank: Rank) -> list[dist.ProcessGroup]:
    """This rank's context, tensor and batch group. Every rank makes all of them, as torch asks."""
    grid = grid_of(rank.case)
    kinds = grid.transpose(1, 2).flatten(0, 1), grid.flatten(0, 1), grid.flatten(0, 1).T
    made = [[(ranks, dist.new_group(ranks)) for ranks in kind.tolist()] for kind in kinds]
    return [next(group for ranks, group in kind if rank.rank in ranks) for kind in made]


def _train(rank: Rank) -> None:
    """Answers loss.STEP, grad.STEP.NAME, trained.NAME; recordings forward, backward and sums (of gradients)
    of each step, and `EVALUATION`. Facts held_bytes, of the rank's part when it was made, and changed: what
    is no longer as it was in the whole model. Before, another model is made, of other groups; afterwards this
    one is evaluated on one sequence, of another length, and on the shortest sequence: answer shortest.
    """
    full = loaded(plain_model(rank.case).to(rank.device), under("full.", rank.inputs))
    full.train(not rank.params["evaluated"])
    given, (context, tensor, batch) = _held(full), _groups(rank)
    gc.collect()  # a model of an earlier case may hold itself: its memory would count as there before
    before_it = holding()
    with numbers_given() as read:
        model = rank.student.ContextParallelGPT(full, context, tensor, batch)
    gc.collect()
    rank.fact("held_bytes", held_since(before_it) + read.kept_bytes)
    other_model = rank.student.ContextParallelGPT(full, tensor, tensor, tensor)
    with recorded_throughout(rank):
        _steps(rank, model)
    before, held = under("full.", rank.inputs), _held(full)
    other = {n for n, p in full.named_parameters() if not torch.equal(p, before[n])}
    del other_model
    other |= {n for n in given.keys() | held.keys() if given.get(n, given) is not held.get(n, held)}
    rank.fact("changed", sorted(other))


def _steps(rank: Rank, model: Any) -> None:
    for step in range(STEPS):
        model.zero_grad(set_to_none=not rank.params["zeroed"])
        with rank.recording("forward"):
            loss = model.loss(rank.inputs["ids"][step].clone(), rank.inputs["targets"][step].clone())
        with rank.recording("backward"):
            loss.backward()
        with rank.recording("sums"):
            model.sum_gradients()
        rank.answer(f"loss.{step}", loss)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            rank.answer(f"grad.{step}.{name}", parameter.grad)
        descend(model)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        rank.answer(f"trained.{name}", parameter)
    with rank.attempt("losses"):
        for tokens in _evaluated_tokens(rank.inputs["ids"].shape[-1]):
            loss = _evaluate(rank, model, tokens)
        rank.answer("shortest", loss)


def _evaluated_tokens(own: int) -> tuple[int, int]:
    """How many of a rank's `own` tokens are evaluated in each of two calls."""
    return max(SHORTEST, own - 2), SHORTEST


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


@dataclass(frozen=True)
class OneProcess(Evidence):
    """With the same training in one process, computed in float64, told in the case's dtype."""

    @cached_property
    def losses(self) -> list[Tensor]:
        """One a step."""
        return self._trained[0]

    @cached_property
    def states(self) -> dict[str, State]:
        """ "grad.STEP", the gradients of each step, and "trained", the weights after the last one."""
        return self._trained[1]

    @property
    def shortest(self) -> Tensor | None:
        """The loss of the shortest sequences, after training; None where no rank has a target of theirs."""
        return self._trained[2]

    @cached_property
    def _trained(self) -> tuple[list[Tensor], dict[str, State], Tensor | None]:
        model = loaded(plain_model(self.case).double(), under("full.", self.inputs))
        dtype = dtype_of(self.case)
        losses, states = [], {}
        for step in range(STEPS):
            model.zero_grad()
            logits, targets = model(self.inputs["ids"][step]), self.inputs["targets"][step]
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
            loss.backward()
            losses.append(loss.detach().to(dtype))
            states[f"grad.{step}"] = {
                n: p.grad.to(dtype, copy=True) for n, p in model.named_parameters() if p.grad is not None
            }
            descend(model)
        states["trained"] = {name: p.detach().to(dtype) for name, p in model.named_parameters()}
        ids, targets = (self._first_tokens(self.inputs[name][0]) for name in ("ids", "targets"))
        if bool((targets == IGNORED).all()):
            return losses, states, None
        logits = model(ids).detach()
        shortest = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED).to(dtype)
        return losses, states, shortest

    def _first_tokens(self, rows: Tensor) -> Tensor:
        """Of [B, s], each replica's first row: as one short sequence, the first tokens of every rank."""
        p = self.case.params
        pieces, first = p["sizes"]["cp"], rows[:: p["rows"]]
        found = first[:, : SHORTEST * pieces].clone()
        for piece in range(pieces):
            own = zigzag(p["sequence"], piece, pieces)[:SHORTEST]
            found[:, zigzag(found.shape[1], piece, pieces)] = first[:, own]
        return found


def _losses(evidence: OneProcess) -> Iterator[Finding]:
    for answer in evidence.answers:
        for step, loss in enumerate(evidence.losses):
            told = f"step {step}: the mean over all targets of the batch"
            yield same(told, loss, answer, f"loss.{step}")
        if evidence.shortest is not None:
            told = "after training, in a call with one row and fewer tokens: the mean over all targets"
            yield same(told, evidence.shortest, answer, "shortest")


def _states(*kinds: str) -> Judge:
    """What ranks have of these states is their part of the one process's."""

    def judge(evidence: OneProcess) -> Iterator[Finding]:
        for answer in evidence.answers:
            for kind in kinds:
                what = "value after training of" if kind == "trained" else f"step {kind[-1]}: gradient of"
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


def _tokens(evidence: OneProcess, spot: Spot) -> int:
    """Tokens of a rank in a step of training."""
    p = evidence.case.params
    return int(p["rows"] * p["sequence"] // len(spot.context))


def _message_bytes(evidence: OneProcess, spot: Spot, tokens: int) -> int:
    """Bytes of keys, or of values, of a rank's heads."""
    numbers = tokens * evidence.case.params["hidden"] // len(spot.tensor)
    return int(numbers * dtype_of(evidence.case).itemsize)


def _forward_bytes(evidence: OneProcess, spot: Spot, tokens: int) -> int:
    """Bytes that a forward sends round the ring."""
    messages: int = evidence.case.params["layers"] * 2 * (len(spot.context) - 1)
    return messages * _message_bytes(evidence, spot, tokens)


def _keys_alone(phase: str, *more: str) -> Judge:
    """Between the pieces of a sequence go the ring's messages, beside a loss's two numbers and the sums of
    gradients, in each step; what tensor-parallel ranks send each other does not count. more: recordings that
    belong to the phase.
    """

    def find(evidence: OneProcess, answer: RankAnswer) -> Iterator[Finding]:
        times = _each_time(answer, phase, *more)
        return (finding for names in times for finding in find_in(evidence, answer, names))

    def find_in(evidence: OneProcess, answer: RankAnswer, names: Sequence[str]) -> Iterator[Finding]:
        spot = spot_of(evidence.case, answer.rank)
        size, backward = len(spot.context), phase == "backward"
        messages = evidence.case.params["layers"] * (4 * size - 2) * (size > 1)
        tokens = _tokens(evidence, spot)
        sent_back = messages * _message_bytes(evidence, spot, tokens)
        due = sent_back if backward else _forward_bytes(evidence, spot, tokens)
        found = [c for name in names for c in each_once(answer.collectives[name])]
        calls = [c for c in found if not _within(c, spot.tensor)]
        sent = sum(c["num_bytes"] for c in calls if c["op"] == "send" and _within(c, spot.context))
        told = f"{phase}: {due:,} bytes sent to the next piece of the sequence"
        yield Finding(sent == due, told, f"{sent:,} bytes", answer.rank)
        rest = [c for c in calls if c["op"] not in ("send", "recv")]
        seen = calls_text([(c["op"], c["num_bytes"]) for c in rest])
        if backward:
            state = spot.cut(evidence.states["trained"])
            told = (
                f"backward: beside that, gradients of {sum(map(nbytes, state.values())):,} bytes summed once"
            )
            yield Finding(_summed_once(rest, state), told, seen, answer.rank)
        else:
            told = f"forward: beside that, at most {MOST_BYTES} bytes for a sum and a number of targets"
            yield Finding(sum(c["num_bytes"] for c in rest) <= MOST_BYTES, told, seen, answer.rank)

    return lambda evidence: (f for answer in evidence.answers for f in find(evidence, answer))


def _no_more_in_evaluation(evidence: OneProcess) -> Iterator[Finding]:
    """Of one row of fewer tokens, the messages of a forward, and a loss's two numbers."""
    for answer in evidence.answers:
        spot = spot_of(evidence.case, answer.rank)
        tokens = _evaluated_tokens(evidence.case.params["sequence"] // len(spot.context))
        for name, own in zip((*answer.earlier(EVALUATION), EVALUATION), tokens, strict=True):
            due = _forward_bytes(evidence, spot, own)
            calls = [c for c in each_once(answer.collectives[name]) if not _within(c, spot.tensor)]
            sent = sum(c["num_bytes"] for c in calls if c["op"] == "send")
            told = f"{EVALUATION}: {due:,} bytes sent to the next piece of the sequence"
            yield Finding(sent == due, told, f"{sent:,} bytes", answer.rank)
            rest = [(c["op"], c["num_bytes"]) for c in calls if c["op"] not in ("send", "recv")]
            told = f"{EVALUATION}: beside that, at most {MOST_BYTES} bytes for a sum and a number of targets"
            yield Finding(sum(n for _, n in rest) <= MOST_BYTES, told, calls_text(rest), answer.rank)


def _summed_once(calls: Sequence[Mapping[str, Any]], state: State) -> bool:
    """Whether no more is moved than by one sum over ranks of what a state holds. Each tensor that the ranks
    do not divide may be filled up.
    """
    ranks = len(calls[0]["group"]) if calls else 1
    filling = sum(-t.numel() % ranks * t.element_size() for t in state.values())
    kinds = {c["op"] for c in calls}
    most = sum(map(nbytes, state.values())) + filling
    return kinds <= {*SHARES, "all_gather"} and summed_bytes(calls) <= most


def _summed_at_all(evidence: OneProcess) -> Iterator[Finding]:
    """Where gradients are right somebody has summed them: in backward, or when asked to. Of tables a rank may
    send less, rows that somebody has looked at.
    """
    if not all(finding.passed for finding in GRADIENTS(evidence)):
        return
    for answer in evidence.answers:
        spot = spot_of(evidence.case, answer.rank)
        state = spot.cut(evidence.states["trained"])
        least = sum(nbytes(t) for n, t in state.items() if n.startswith(("blocks.", "norm.")))
        told = f"gradients of at least {least:,} bytes summed in backward and `sum_gradients`"
        for names in _each_time(answer, "backward", "sums") if len(spot.batch) > 1 else ():
            calls = [c for name in names for c in answer.collectives[name] if c["op"] not in ("send", "recv")]
            seen = summed_bytes(c for c in calls if not _within(c, spot.tensor))
            yield Finding(seen >= least, told, f"{seen:,.0f} bytes", answer.rank)


def _each_time(answer: RankAnswer, *phases: str) -> Iterator[tuple[str, ...]]:
    """The names of the recordings of these phases, step by step."""
    return zip(*([*answer.earlier(name), name] for name in phases), strict=True)


def _within(call: Mapping[str, Any], members: list[int]) -> bool:
    return sorted(call["group"]) == sorted(members)


TRAINED = Run(_train, gpt_inputs, hand_part, OneProcess)
GRADIENTS = _states(*(f"grad.{step}" for step in range(STEPS)))
ALL = every(_losses, GRADIENTS, _states("trained"))
TRAFFIC = every(
    _keys_alone("forward"),
    _keys_alone("backward", "sums"),
    _no_more_in_evaluation,
    _summed_at_all,
    single_numbers_between(MOST_BYTES),
)
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
            {"values": _losses},
        ),
        Property(
            "gradients",
            "numbers",
            4,
            "All gradients are those of the whole batch in one process.",
            "averaged over the ranks of a sequence, each of which has a part of one sum; or not summed over"
            " replicas with whole sequences",
            {"values": GRADIENTS},
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
