"""What a loss that keeps experts balanced must show, and the bias that does without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_12.exchange import CROSSED, own_names
from labkit.checks.lesson_12.reference import drawn_experts
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_of, calls_text, on_each, same, stays_in_group
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.split import drawn
from labkit.checks.shared.twins import each_once

BALANCE_ID = "12.balance"
WEIGHT = 0.7  # of the loss in what is differentiated: a gradient must reach the probabilities through it
LAYERS = 2


def balance_case(
    name: str, kind: str, tokens: list[int], experts: int, k: int, seed: int, **params: Any
) -> Case:
    """tokens: of each rank. rate: by how much the bias is nudged, a power of 2, or so small that float32
    is as good as float64.
    used: the experts that are visited, default all. before: visits that each expert, or the first, the second
    and so on, had on each rank besides, when the bias is nudged. whole: the dtype of visits, default int64.
    bias: of the bias, default that of the probabilities.
    """
    settings = {"tokens": tokens, "experts": experts, "k": k, "rate": 2.0**-6, "before": 0, **params}
    return Case(name, len(tokens), settings, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    return [
        balance_case(
            "three ranks, uneven tokens",
            "values",
            [5, 12, 8],
            4,
            2,
            seed,
            late=[1],
            rate=0.001,  # DeepSeek-V3's
            before=[2 * 10**9, 0, 10**9, 10**9],  # neither sums nor what is between them fit into int32
            whole="int32",
        ),
        balance_case(
            "an expert that nobody visits, visits in int32",
            "values",
            [6, 9],
            5,
            2,
            seed,
            used=[0, 1, 3, 4],
            # of the sums over both ranks some fit into int32, some do not, and one is 0
            before=[2**30 - 2, 2**30 - 2, 0, 2**30 - 2, 2**30 - 2],
            whole="int32",
            bias="bfloat16",
        ),
        balance_case(
            "four ranks, float32", "values", [3, 9, 6, 14], 6, 1, seed, dtype="float32", before=50_000_003
        ),
        balance_case("a rank without tokens", "idle", [7, 0, 5], 5, 2, seed, rate=0.5),
        balance_case("everybody visited equally often", "even", [4, 2, 6], 3, 3, seed, rate=0.125),
        balance_case("crossed groups", "subgroup", [4, 9, 6, 7], 4, 2, seed, groups=CROSSED, rate=0.25),
        balance_case("alone", "subgroup", [8], 5, 3, seed),
        balance_case("two layers, then backward", "layers", [6, 4, 9], 4, 2, seed),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each rank probabilities.R [n, E] and experts.R [n, k]; for each its group's bias.R [E]."""
    num_experts, inputs = case.params["experts"], {}
    for members in groups_of(case):
        bias = drawn(case, generator, num_experts)
        for rank in members:
            n = case.params["tokens"][rank]
            scores = drawn(case, generator, n, num_experts) + torch.linspace(1, -1, num_experts)
            inputs[f"probabilities.{rank}"] = scores.to(bias.dtype).softmax(-1)
            among = case.params.get("used", list(range(num_experts)))
            inputs[f"experts.{rank}"] = drawn_experts(generator, n, case.params["k"], among)
            inputs[f"bias.{rank}"] = bias.to(
                getattr(torch, case.params.get("bias", str(bias.dtype)[6:])), copy=True
            )
    return inputs


def _balance(rank: Rank) -> None:
    """Answers loss, evaluated, without a graph, grad, bias and, as they were handed over, kept.bias and
    kept.visits; recordings loss and nudge, of each call, and backward.
    """
    group = enter_group(rank)
    probabilities = rank.inputs["probabilities"].clone().requires_grad_()
    experts, bias = rank.inputs["experts"].clone(), rank.inputs["bias"].clone()
    with rank.recording("loss"):
        rank.student.balance_loss(probabilities.detach().flip(-1), experts, group)
    with rank.recording("loss"):
        given = probabilities if rank.case.kind == "values" else as_inside(probabilities)
        loss = rank.student.balance_loss(given, experts, group)
    shape = loss.shape if rank.case.kind == "values" else ()  # it is asked for once
    rank.answer("loss", loss.reshape(shape))
    with rank.attempt("gradients"), rank.recording("backward"):
        (WEIGHT * loss).backward()
    rank.answer("grad", probabilities.grad)
    with torch.no_grad(), rank.recording("loss"):
        evaluated = rank.student.balance_loss(probabilities.detach(), experts, group)
    rank.answer("evaluated", evaluated.reshape(shape))
    visits = _own_visits(rank.case, experts)
    with rank.recording("nudge"):
        rank.student.nudge(bias.clone(), visits.flip(0), rank.params["rate"], group)
    with rank.recording("nudge"):
        nudged = rank.student.nudge(bias, visits, rank.params["rate"], group)
    rank.answer("bias", nudged)
    rank.answer("kept.bias", bias)
    rank.answer("kept.visits", visits)


def _balance_layers(rank: Rank) -> None:
    """As a model with several layers does: both losses, and one of a layer whose router is frozen, before one
    backward of the sum, and then each layer's nudge. Answers, read when all calls are over, loss.LAYER,
    frozen, grad.LAYER and bias.LAYER: what the first nudge gave is handed over in the second.
    """
    group, num_experts, rate = enter_group(rank), rank.params["experts"], rank.params["rate"]
    leaves = [layer.requires_grad_() for layer in _of_layers(rank.inputs["probabilities"])]
    chosen = _chosen_in_layers(rank.inputs["experts"], num_experts)
    losses = [rank.student.balance_loss(p, e, group) for p, e in zip(leaves, chosen, strict=True)]
    frozen = rank.student.balance_loss(leaves[0].detach(), chosen[1], group)
    for name, loss in (("loss.0", losses[0]), ("loss.1", losses[1]), ("frozen", frozen)):
        rank.answer(name, loss.reshape(()))
    with rank.attempt("gradients"):
        (WEIGHT * losses[0] + losses[1]).backward()
    bias, biases = rank.inputs["bias"].clone(), list[Tensor]()
    for visits in (_own_visits(rank.case, experts) for experts in chosen):
        bias = rank.student.nudge(bias, visits, rate, group)
        biases.append(bias)
    for layer in range(LAYERS):
        rank.answer(f"grad.{layer}", leaves[layer].grad)
        rank.answer(f"bias.{layer}", biases[layer])


def _of_layers(probabilities: Tensor) -> list[Tensor]:
    """Those of both layers, of which the first one's were drawn."""
    return [probabilities.clone(), probabilities.flip(-1)]


def _chosen_in_layers(experts: Tensor, num_experts: int) -> list[Tensor]:
    """The experts of both layers: in the second one each token visits their neighbours."""
    return [experts.clone(), (experts + 1) % num_experts]


def _own_visits(case: Case, experts: Tensor) -> Tensor:
    """[E]: of one rank, those before too."""
    visits = torch.bincount(experts.flatten(), minlength=case.params["experts"])
    visits += torch.tensor(case.params["before"], device=visits.device)
    return visits.to(getattr(torch, case.params.get("whole", "int64")))


# -- judges


def _of_group(evidence: Evidence, rank: int, name: str) -> list[Tensor]:
    return [evidence.inputs[f"{name}.{member}"] for member in place_of(evidence.case, rank).members]


def _visits(evidence: Evidence, rank: int, layer: int = 0) -> Tensor:
    """[E]: of all ranks of the group, in a layer."""
    num_experts = evidence.case.params["experts"]
    experts = torch.cat(_of_group(evidence, rank, "experts"))
    return torch.bincount(_chosen_in_layers(experts, num_experts)[layer].flatten(), minlength=num_experts)


def _whole(evidence: Evidence, rank: int) -> tuple[Tensor, Tensor]:
    """The loss of the group's tokens in one process, and WEIGHT of its gradient at this rank's
    probabilities.
    """
    loss, gradient = _of_all(evidence, rank, 0, _visits(evidence, rank))
    return loss, WEIGHT * gradient


def _of_all(evidence: Evidence, rank: int, layer: int, visits: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of all tokens' probabilities in a layer beside these visits, and its gradient."""
    parts = [_of_layers(p)[layer].requires_grad_() for p in _of_group(evidence, rank, "probabilities")]
    together = torch.cat(parts)
    shares = visits.to(together.dtype) / visits.sum()
    loss = len(visits) * (shares * together.mean(0)).sum()
    (gradient,) = torch.autograd.grad(loss, parts[place_of(evidence.case, rank).position])
    return loss.detach(), gradient


def _loss(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        loss, told = _whole(evidence, answer.rank)[0], "the loss of the tokens of all ranks"
        yield same(told, loss, answer, "loss")
        yield same(f"{told}, without a graph", loss, answer, "evaluated")


def _gradient(evidence: Evidence, answer: RankAnswer) -> Finding:
    told = f"gradient of this rank's probabilities in {WEIGHT} times the loss of all tokens"
    return same(told, _whole(evidence, answer.rank)[1], answer, "grad")


def _losses_of_layers(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for layer in range(LAYERS):
            loss, _ = _of_all(evidence, answer.rank, layer, _visits(evidence, answer.rank, layer))
            told = f"the loss of all ranks' tokens in layer {layer}, read after the other layer's"
            yield same(told, loss, answer, f"loss.{layer}")
        loss, _ = _of_all(evidence, answer.rank, 0, _visits(evidence, answer.rank, 1))
        told = "the loss of all ranks' tokens, where probabilities need no gradient (a frozen router)"
        yield same(told, loss, answer, "frozen")


def _gradients_of_layers(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for layer, weight in enumerate((WEIGHT, 1.0)):
            visits = _visits(evidence, answer.rank, layer)
            _, gradient = _of_all(evidence, answer.rank, layer, visits)
            told = f"gradient of layer {layer}, where both layers' losses come before one backward of the sum"
            yield same(told, weight * gradient, answer, f"grad.{layer}")


def _nudged_in_layers(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        bias = evidence.inputs[f"bias.{answer.rank}"]
        for layer in range(LAYERS):
            bias = bias + _step(evidence, answer.rank, layer).to(bias.dtype)
            told = "the second call's bias: the first one's, nudged once more"
            if not layer:
                told = "the first call's bias, as it was when it was handed over in the second"
            yield same(told, bias, answer, f"bias.{layer}")


def _all_visits(evidence: Evidence, rank: int, layer: int = 0) -> Tensor:
    """[E], float64: those that were before, too."""
    before, size = torch.tensor(evidence.case.params["before"]), place_of(evidence.case, rank).size
    return (size * before + _visits(evidence, rank, layer)).double()


def _step(evidence: Evidence, rank: int, layer: int = 0) -> Tensor:
    """[E]: by how much a bias moves."""
    visits, rate = _all_visits(evidence, rank, layer), float(evidence.case.params["rate"])
    return rate * (visits.mean() - visits).sign()


def _nudged(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    bias, mean = evidence.inputs[f"bias.{answer.rank}"], _all_visits(evidence, answer.rank).mean()
    told = f"bias up by the rate where there are less than {mean:g} visits, down where more"
    yield same(told, bias + _step(evidence, answer.rank).to(bias.dtype), answer, "bias")
    yield same("the bias that was handed over, as it was", bias, answer, "kept.bias")
    own = _own_visits(evidence.case, evidence.inputs[f"experts.{answer.rank}"])
    yield same("the visits that were handed over, as they were", own, answer, "kept.visits")


def _judge_nudged(evidence: Evidence) -> Iterator[Finding]:
    return (finding for answer in evidence.answers for finding in _nudged(evidence, answer))


def _few_numbers(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    """Sums over experts travel, of whatever dtype, and no token's probabilities: each time."""
    num_experts = evidence.case.params["experts"]
    for phase, most in (("loss", 2 * num_experts + 2), ("backward", 0), ("nudge", num_experts + 1)):
        for time in (phase, *answer.earlier(phase)):
            yield _up_to(most, answer, time)


def _up_to(most: int, answer: RankAnswer, phase: str) -> Finding:
    calls = calls_of(answer, phase)
    sums = all(op == "all_reduce" for op, _ in calls)
    told = f"{phase}: all_reduces of at most {most} numbers together" if most else f"{phase}: nothing sent"
    sent = [call for call in answer.collectives.get(phase, []) if call["dtype"]]
    numbers = sum(c["num_bytes"] // getattr(torch, c["dtype"]).itemsize for c in each_once(sent))
    return Finding(sums and numbers <= most, told, f"{phase}: {calls_text(calls)}", answer.rank)


def _judge_few(evidence: Evidence) -> Iterator[Finding]:
    return (finding for answer in evidence.answers for finding in _few_numbers(evidence, answer))


EVERYTHING = every(_loss, on_each(_gradient), _judge_nudged)
RUN = Run(_balance, _inputs, own_names)
EXERCISE = Exercise(
    BALANCE_ID,
    "Experts that are visited evenly",
    ("balance_loss", "nudge"),
    {
        **dict.fromkeys(("values", "idle", "even", "subgroup"), RUN),
        "layers": Run(_balance_layers, _inputs, own_names),
    },
    _cases,
    (
        Property(
            "loss",
            "numbers",
            3,
            "The loss is that of all tokens of all ranks, the same number on each.",
            "the mean of the ranks' losses: a product of means is not the mean of products",
            {"values": _loss, "layers": _losses_of_layers},
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "Each rank's probabilities get their gradient in that loss, once, also where two layers' losses"
            " come before one backward.",
            "the sum over ranks was differentiated too: n times too much; or a rank counted its own tokens",
            {"values": on_each(_gradient), "layers": _gradients_of_layers},
        ),
        Property(
            "messages",
            "mechanism",
            1,
            "Sums over experts are reduced, and backward sends nothing.",
            "probabilities gathered from everybody",
            {"values": _judge_few},
            dict.fromkeys(("idle", "even", "subgroup"), _judge_few),
        ),
        Property(
            "nudge",
            "numbers",
            2,
            "The bias moves by the rate towards the experts that all ranks together visit too little.",
            "each rank nudged by its own visits, and biases drift apart",
            {"values": _judge_nudged, "layers": _nudged_in_layers},
        ),
        Property(
            "even",
            "robustness",
            1,
            "Where every expert has its share the loss is 1 and the bias stays.",
            "the factor E, or a division by the k of each token, left out",
            {"even": EVERYTHING},
        ),
        Property(
            "idle",
            "robustness",
            1,
            "A rank may have no tokens.",
            "a mean over nothing is nan",
            {"idle": EVERYTHING},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, and on one rank alone.",
            "an all_reduce without group=",
            {"subgroup": every(EVERYTHING, stays_in_group)},
        ),
    ),
)
