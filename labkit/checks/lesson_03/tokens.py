"""What `03.token-weighted-loss` must show: different numbers of tokens on the ranks, all counted alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_03.net import PAIRS, TORCHS_OWN, subgroup
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import State, calls_of, calls_text, stays_in_group
from labkit.checks.shared.company import in_company
from labkit.checks.shared.places import enter_group, place_of

NUMBER_BYTES = 8  # of the largest kind of number that can be sent
ONE_FOR_ALL = ("all_reduce", "all_gather")  # each hands a number of every rank to all of them


def tokens_case(name: str, kind: str, tokens: list[int], seed: int, **params: Any) -> Case:
    """So many rows on each rank. each: tokens in a row, 1 where it is not said. dtype: of the sum of losses.
    loss_sum: what this sum is on every rank.
    again: there was a batch before, in which the other ranks had more tokens.
    """
    return Case(name, len(tokens), {"tokens": tokens, **params}, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    return [
        tokens_case("3 and 8 tokens", "values", [3, 8], seed, late=[1]),
        tokens_case("1,001 and 258 tokens", "values", [1001, 258], seed),
        tokens_case("1, 6, 2 and 9 tokens", "values", [1, 6, 2, 9], seed, again=True),
        tokens_case("losses in bfloat16", "values", [2055, 2055, 2055, 2027], seed, dtype="bfloat16"),
        tokens_case(
            "losses in float16", "values", [24, 8], seed, each=4096, dtype="float16", loss_sum=40_000
        ),
        tokens_case("a rank without tokens", "empty", [0, 5], seed),
        tokens_case("no tokens at all", "empty", [0, 0], seed),
        tokens_case("a group of one without tokens", "empty", [0], seed),
        tokens_case("one token in all", "empty", [0, 1], seed),
        tokens_case("two groups of two", "subgroup", [2, 7, 3, 4], seed, groups=PAIRS, again=True),
    ]


def _draw_rows(case: Case, generator: torch.Generator) -> Inputs:
    """A weight vector, and rows of which each rank has its own number."""
    rows = max([1, *case.params["tokens"]])
    drawn = torch.randn(case.ranks, rows, 4, generator=generator, dtype=torch.float64)
    return {"x": drawn, "w": torch.randn(4, generator=generator, dtype=torch.float64)}


def _hand_rows(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """The weights, and a rank's own rows."""
    return {"x": inputs["x"][rank, : case.params["tokens"][rank]], "w": inputs["w"]}


def _each(case: Case) -> int:
    """Tokens in a row."""
    return int(case.params.get("each", 1))


def _loss_sum(case: Case, x: Tensor, w: Tensor) -> Tensor:
    """bfloat16 and float16 round this, and nothing else where the number of all tokens is a power of two.
    Where some ranks have no tokens, each has a loss that is masked out too.
    """
    total = (x @ w).square().sum()
    if case.kind == "empty":
        total = total + (w * 0).sum()
    if "loss_sum" in case.params:
        total = total * (case.params["loss_sum"] / total.detach())
    return total.to(getattr(torch, case.params.get("dtype", "float64")))


def _weigh(rank: Rank) -> None:
    """Backpropagate the student's loss; what DDP does afterwards, averaging, is done by the judge. Where the
    case says `again`, another batch was weighed before, over all ranks.

    Answers: loss, grad (zeros where there is none). Facts: returned, the shape of the loss; changed, whether
    the sum handed over was, or its gradient, or whether it keeps that now; reached, whether there is a
    gradient.
    """
    group, w = enter_group(rank), rank.inputs["w"].clone().requires_grad_()
    x = rank.inputs["x"]
    total, tokens = _loss_sum(rank.case, x, w), len(x) * _each(rank.case)
    if rank.params.get("again"):
        more = tokens if rank.rank == 0 else 3 * tokens  # whoever kept the total of all would use it again
        rank.student.token_weighted_loss(_loss_sum(rank.case, x, w), more, rank.group)
    before = _with_gradient(total, w)
    with rank.recording("all"):
        loss: Any = rank.student.token_weighted_loss(total, tokens, group)
        after = _with_gradient(total, w)
        loss.backward()
    rank.fact("returned", f"shape {list(loss.shape)}")
    rank.fact("changed", total.retains_grad or not all(map(torch.equal, before, after)))
    rank.fact("reached", w.grad is not None)
    rank.answer("loss", loss)
    rank.answer("grad", torch.zeros_like(w) if w.grad is None else w.grad)


def _with_gradient(total: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A sum as it is now, and what its own backward gives."""
    return total.detach().clone(), torch.autograd.grad(total, w, retain_graph=True)[0]


# -- judges


@dataclass(frozen=True)
class TokenEvidence(Evidence):
    """One case's answers, to be held against the mean over all tokens of a group."""

    def members(self, answer: RankAnswer) -> Sequence[int]:
        """The ranks of a rank's group."""
        return place_of(self.case, answer.rank).members

    def tokens(self, answer: RankAnswer) -> int:
        """How many there are in a rank's group."""
        return _each(self.case) * sum(self.case.params["tokens"][r] for r in self.members(answer))

    def mean_over_tokens(self, answer: RankAnswer) -> State:
        """The "loss" of a rank's group, and its "grad"."""
        w = self.inputs["w"].clone().requires_grad_()
        rows = [_hand_rows(self.case, self.inputs, r)["x"] for r in self.members(answer)]
        mean = torch.stack([_loss_sum(self.case, x, w) for x in rows]).double().sum() / max(
            self.tokens(answer), 1
        )
        (gradient,) = torch.autograd.grad(mean, w)
        return {"loss": mean.detach(), "grad": gradient}

    def averaged(self, name: str, answer: RankAnswer) -> Finding:
        """Whether what the ranks of a group answered is, averaged, that of the mean over all tokens."""
        wanted = self.mean_over_tokens(answer)[name]
        shares = [self.answers[r].tensors[name].double().reshape(wanted.shape) for r in self.members(answer)]
        seen = torch.stack(shares).mean(0)
        wrong = difference(*(wanted.float(), seen.float()) if name == "loss" else (wanted, seen))
        what = {"loss": "the mean", "grad": "the gradient of the mean"}[name]
        told = f"averaged over ranks: {what} over all {self.tokens(answer)} tokens"
        return Finding(wrong is None, told, wrong or "", answer.rank)


def _averages(*names: str) -> Judge:
    """The "loss" or "grad" of the ranks is, averaged, that of the mean over all tokens."""

    def judge(evidence: TokenEvidence) -> Iterator[Finding]:
        return (evidence.averaged(name, answer) for name in names for answer in evidence.answers)

    return judge


def _is_a_scalar(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        returned = answer.facts["returned"]
        yield Finding(returned == "shape []", "a scalar: shape []", returned, answer.rank)


def _leaves_the_sum_alone(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        said = "changed" if answer.facts["changed"] else ""
        yield Finding(
            not said, "the sum that was handed over, and its gradient, as they were", said, answer.rank
        )


def _reaches_the_weights(evidence: TokenEvidence) -> Iterator[Finding]:
    """Whoever has no token has a gradient too, of zeros: what averages them waits for it."""
    for answer in evidence.answers:
        if evidence.case.params["tokens"][answer.rank] == 0:
            found = answer.tensors["grad"].abs().max().item() if answer.facts["reached"] else None
            said = "none" if found is None else f"up to {found:g}"
            told = "a gradient of zeros on a rank without tokens"
            yield Finding(found == 0, told, said, answer.rank)


def _one_number_once(evidence: Evidence) -> Iterator[Finding]:
    for answer in in_company(evidence):
        calls = calls_of(answer, "all")
        right = [op in ONE_FOR_ALL for op, _ in calls] == [True] and calls[0][1] <= NUMBER_BYTES
        yield Finding(right, "one all_reduce (or all_gather) of one number", calls_text(calls), answer.rank)


BOTH = _averages("grad", "loss")
EXERCISE = Exercise(
    "03.token-weighted-loss",
    "Unequal numbers of tokens",
    ("token_weighted_loss",),
    dict.fromkeys(
        ("values", "millions", "empty", "subgroup"), Run(_weigh, _draw_rows, _hand_rows, TokenEvidence)
    ),
    _cases,
    (
        Property(
            "gradients",
            "numbers",
            3,
            "Averaged over the ranks, the gradient is that of the mean over all tokens",
            "a mean of means gives few tokens too much weight; averaging divides by the world size again",
            {"values": _averages("grad")},
        ),
        Property(
            "loss-value",
            "numbers",
            1,
            "Averaged over the ranks, the loss is the mean over all tokens",
            "each rank's sum is divided by its own tokens, or the factor of the number of ranks is missing",
            on={
                "values": every(_averages("loss"), _is_a_scalar, _leaves_the_sum_alone),
                "millions": _averages("loss"),
            },
            also=dict.fromkeys(("empty", "subgroup"), every(_is_a_scalar, _leaves_the_sum_alone)),
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "One number is sent, once",
            "sums of the losses are sent as well, or the count is sent again in backward",
            on={"values": _one_number_once},
            also=dict.fromkeys(("empty", "millions", "subgroup"), _one_number_once),
        ),
        Property(
            "no-tokens",
            "robustness",
            1,
            "Ranks without tokens give zeros, not NaN, and gradients of zeros, not None",
            "a fresh zero hangs on no parameter: their hooks never run, and the other ranks wait",
            {"empty": every(BOTH, _reaches_the_weights)},
        ),
        subgroup(every(BOTH, stays_in_group)),
    ),
    forbids=TORCHS_OWN,
)
