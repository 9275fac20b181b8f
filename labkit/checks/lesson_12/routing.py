"""What choosing experts must show: who is visited, how much each counts, and where gradients go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_12.handed import as_handed, tell_changed
from labkit.checks.lesson_12.reference import MARGIN, Routed, decided_tokens, routed
from labkit.checks.rank import Rank
from labkit.checks.shared.again import others
from labkit.checks.shared.beside import is_refused, on_each, same
from labkit.checks.shared.split import drawn, dtype_of

ROUTE_ID = "12.route"
LEAVES = ("tokens", "router")
DECISIVE = 30.0  # so many times a drawn bias lies further apart than any two probabilities
BEYOND_ROUNDING = 1e-3  # of what the router's rows differ by: far more than float64 loses of it


def route_case(name: str, kind: str, shape: list[int], k: int, seed: int, **params: object) -> Case:
    """shape: [n, h, E]. dtype: of the tokens. router: the router's dtype, by default float32 or better; bias:
    the bias's, by default what is computed in. shift: by how much a token's scores are above or below 0.
    below: the bias decides alone, and the scores of the experts that it chooses are so far below the others.
    near: the router's rows differ by numbers of about this size, which are all that decides.
    apart: every second token's scores are above 0 by so much for half of the experts, and below it for the
    others; of the tokens between these the other way round. level: what biases are a little above.
    """
    return Case(name, 1, {"shape": shape, "k": k, **params}, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    return [
        route_case("two of eight", "values", [12, 6, 8], 2, seed),
        route_case("three of five, float32", "values", [9, 4, 5], 3, seed, dtype="float32"),
        route_case("tokens in bfloat16", "low", [16, 8, 6], 2, seed, dtype="bfloat16"),
        route_case(
            "tokens and router in bfloat16", "low", [9, 8, 5], 2, seed, dtype="bfloat16", router="bfloat16"
        ),
        route_case("a router in float64", "mixed", [8, 6, 5], 2, seed, dtype="float32", router="float64"),
        route_case("a bias for each expert", "biased", [14, 5, 6], 2, seed),
        route_case("a bias in bfloat16", "biased", [60, 5, 6], 2, seed, dtype="float32", bias="bfloat16"),
        route_case("a bias of both signs", "biased", [14, 5, 6], 2, seed, dtype="float32", level=-0.25),
        route_case("one expert", "extremes", [7, 5, 4], 1, seed),
        route_case("every expert", "extremes", [6, 5, 3], 3, seed),
        route_case("no tokens", "extremes", [0, 5, 4], 2, seed),
        route_case("one token", "extremes", [1, 5, 4], 2, seed),
        route_case("scores of hundreds", "extremes", [6, 5, 4], 2, seed, shift=900.0),
        route_case("scores hundreds apart", "extremes", [6, 5, 6], 2, seed, dtype="float32", apart=200.0),
        route_case("more than there are", "refused", [3, 4, 4], 5, seed),
        route_case("none", "refused", [3, 4, 6], 0, seed),
    ]


def _inputs(case: Case, generator: torch.Generator, biased: bool = False) -> Inputs:
    """Tokens, a router, and weights for what is differentiated, in the dtype that is computed in."""
    n, hidden, num_experts = case.params["shape"]
    wide = torch.promote_types(dtype_of(case), torch.float32)
    kept = getattr(torch, case.params["router"]) if "router" in case.params else wide
    router = (drawn(case, generator, num_experts, hidden).to(wide) / hidden**0.5).to(kept)
    near = case.params.get("near")
    if near:
        router = router[:1] + near * router
    wide = torch.promote_types(wide, kept)
    inputs, shift, below = {"router": router}, case.params.get("shift"), case.params.get("below")
    if shift:
        router[:, 0] = 1  # a token's first number is added to all its scores, and changes no probability
    if biased:
        own = getattr(torch, case.params["bias"]) if "bias" in case.params else wide
        apart = DECISIVE if below else 1.0
        inputs["bias"] = apart * _drawn_bias(generator, num_experts, case.params.get("level", -3.0)).to(own)
    if below:
        router[:, 0] = 0
        router[inputs["bias"].topk(case.params["k"]).indices, 0] = -below
    margin = BEYOND_ROUNDING * near if near else MARGIN
    if "apart" in case.params:
        tokens = _torn_tokens(case, generator, router)
    else:
        bias = inputs.get("bias")
        tokens = decided_tokens(case, generator, n, router, case.params["k"], bias, margin=margin)
    if shift:
        tokens[:, 0] = shift * (-1.0) ** torch.arange(n)
    if below:
        tokens[:, 0] = 1
    if biased:
        tokens[-1] = 0  # as likely for one expert as for another: the bias alone chooses
    weights = {
        f"weight.{name}": torch.randn(n, num_experts, generator=generator, dtype=wide)
        for name in ("gates", "probabilities")
    }
    return {"tokens": tokens, **inputs, **weights}


def _torn_tokens(case: Case, generator: torch.Generator, router: Tensor) -> Tensor:
    """[n, h]: tokens of which each has one half of the experts far below the other; the router's first column
    is changed so that it has.
    """
    n, k, apart = case.params["shape"][0], case.params["k"], case.params["apart"]
    router[:, 0] = 0  # who is taken is decided within a half
    halves = torch.randperm(len(router), generator=generator).chunk(2)
    tokens = decided_tokens(case, generator, n, router[halves[0]], k)
    tokens[1::2] = decided_tokens(case, generator, n, router[halves[1]], k)[1::2]
    router[halves[0], 0], router[halves[1], 0] = 1, -1
    tokens[:, 0] = apart * (-1.0) ** torch.arange(n)
    return tokens


def _drawn_bias(generator: torch.Generator, num_experts: int, level: float) -> Tensor:
    """Each apart from the others, more than bfloat16 rounds. At the usual level scores are below 0 and -1:
    neither stands for an expert that is taken.
    """
    steps = torch.randperm(num_experts, generator=generator)
    return 0.1 * steps + 0.05 * torch.rand(num_experts, generator=generator, dtype=torch.float64) + level


def _plain_inputs(case: Case, generator: torch.Generator) -> Inputs:
    n, hidden, num_experts = case.params["shape"]
    return {
        "tokens": drawn(case, generator, n, hidden),
        "router": drawn(case, generator, num_experts, hidden),
    }


def _choose(rank: Rank) -> tuple[Routed, dict[str, Tensor]]:
    """Answers gates, experts, probabilities, and each as "NAME again", without a graph. Fact changed. Returns
    what the first of these calls gave, and its leaves. One with other numbers comes before them.
    """
    names = [name for name in (*LEAVES, "bias") if name in rank.inputs]
    _called(rank, dict(zip(names, others(*(rank.inputs[name] for name in names)), strict=True)))
    leaves = {name: rank.inputs[name].clone().requires_grad_() for name in LEAVES}
    bias = {name: rank.inputs[name].clone() for name in ("bias",) if name in rank.inputs}
    found = _called(rank, leaves | bias)
    with torch.no_grad():
        again = _called(rank, {name: leaf.detach() for name, leaf in leaves.items()} | bias)
    tell_changed(rank, leaves | bias)
    for name in Routed._fields:
        rank.answer(name, getattr(found, name))
        rank.answer(f"{name} again", getattr(again, name))
    return found, leaves


def _choose_only(rank: Rank) -> None:
    _choose(rank)


def _called(rank: Rank, handed: Mapping[str, Tensor]) -> Routed:
    tokens, router, *bias = handed.values()
    return Routed(*rank.student.route(tokens, router, rank.params["k"], *bias))


def _route(rank: Rank) -> None:
    """What `_choose` does; answers gates.LEAF and probabilities.LEAF, the gradients of each."""
    found, leaves = _choose(rank)
    _tell_gradients(rank, found, leaves)


def _route_in_turn(rank: Rank) -> None:
    """What `_route` does; answers "NAME.LEAF alone", the same gradients where no other leaf asks for one."""
    _route(rank)
    for name in LEAVES:
        leaves = {leaf: rank.inputs[leaf].clone().requires_grad_(leaf == name) for leaf in LEAVES}
        with rank.attempt("gradients"):
            _tell_gradients(rank, _called(rank, leaves), {name: leaves[name]}, " alone")


def _tell_gradients(rank: Rank, found: Routed, leaves: Mapping[str, Tensor], where: str = "") -> None:
    for name in ("gates", "probabilities"):
        with rank.attempt("gradients"):
            for leaf, gradient in _gradients(found, name, rank.inputs, leaves).items():
                rank.answer(f"{name}.{leaf}{where}", gradient)


def _gradients(
    found: Routed, name: str, inputs: Inputs, leaves: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    """Of a weighted sum of the gates, each in the place of its expert, or of the probabilities."""
    weights = inputs[f"weight.{name}"]
    if name == "gates":
        weights = weights.gather(1, found.experts)
    loss = (getattr(found, name) * weights).sum()
    found_for = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True, allow_unused=True)
    return dict(zip(leaves, found_for, strict=True))


def _refuse(rank: Rank) -> None:
    with rank.expect_error("refusal"):
        rank.student.route(rank.inputs["tokens"], rank.inputs["router"], rank.params["k"])


@dataclass(frozen=True)
class Chosen(Evidence):
    """Answers, to be held against the same routing in plain torch."""

    @cached_property
    def leaves(self) -> dict[str, Tensor]:
        return {name: self.inputs[name].clone().requires_grad_() for name in LEAVES}

    @cached_property
    def expected(self) -> Routed:
        """Gates, experts and probabilities."""
        return routed(**self.leaves, k=self.case.params["k"], bias=self.inputs.get("bias"))


def _is(name: str, told: str) -> Judge:
    def judge(evidence: Chosen) -> Iterator[Finding]:
        for answer in evidence.answers:
            expected = getattr(evidence.expected, name).detach()
            yield same(told, expected, answer, name)
            yield same(f"{told}, without a graph", expected, answer, f"{name} again")

    return judge


def _gradients_are(name: str, where: str = "", told: str = "") -> Judge:
    def judge(evidence: Chosen) -> Iterator[Finding]:
        expected = _gradients(evidence.expected, name, evidence.inputs, evidence.leaves)
        for answer in evidence.answers:
            for leaf, gradient in expected.items():
                assert gradient is not None
                of = f"gradient of {leaf} through the {name}{told}"
                yield same(of, gradient, answer, f"{name}.{leaf}{where}")

    return judge


CHOSEN = _is("experts", "the k experts of each token, the preferred one first")
GATES = _is("gates", "gates: the chosen ones' probabilities, divided by their sum")
PROBABILITIES = _is("probabilities", "probabilities of all experts")
GRADIENTS = every(_gradients_are("gates"), _gradients_are("probabilities"))
ONE_ALONE = " alone", ", where nothing else asks for one"
IN_TURN = every(GRADIENTS, _gradients_are("gates", *ONE_ALONE), _gradients_are("probabilities", *ONE_ALONE))
EVERYTHING = every(CHOSEN, GATES, PROBABILITIES, GRADIENTS, on_each(as_handed))
EXERCISE = Exercise(
    ROUTE_ID,
    "Which experts a token visits",
    ("route",),
    {
        **dict.fromkeys(("values", "low", "mixed"), Run(_route_in_turn, _inputs, evidence=Chosen)),
        "near": Run(_choose_only, _inputs, evidence=Chosen),
        "biased": Run(_route, partial(_inputs, biased=True), evidence=Chosen),
        "extremes": Run(_route, _inputs, evidence=Chosen),
        "refused": Run(_refuse, _plain_inputs),
    },
    _cases,
    (
        Property(
            "gates",
            "numbers",
            2,
            "Each token has its k most probable experts, with gates that add up to 1.",
            "probabilities of all experts as gates, which do not add up to 1; or a softmax over the tokens",
            {"values": every(CHOSEN, GATES)},
        ),
        Property(
            "probabilities",
            "numbers",
            1,
            "The probabilities are a softmax over all experts.",
            "a softmax over the chosen ones alone",
            {"values": PROBABILITIES},
        ),
        Property(
            "gradients",
            "numbers",
            2,
            "The gradients of gates and probabilities reach the tokens and the router.",
            "gates taken out of the graph: then no router ever learns",
            dict.fromkeys(("values", "low", "mixed"), IN_TURN),
        ),
        Property(
            "float32",
            "robustness",
            3,
            "All is computed in 32 bits, or in 64 where tokens or router have them, and results stay there.",
            "the product with the router is made in bfloat16, and rounded before the softmax",
            dict.fromkeys(("low", "mixed", "near"), every(CHOSEN, GATES, PROBABILITIES)),
        ),
        Property(
            "bias",
            "numbers",
            3,
            "A bias changes who is chosen, and neither gates nor probabilities.",
            "the bias was added before the softmax, or is in the gates",
            {"biased": EVERYTHING},
        ),
        Property(
            "extremes",
            "robustness",
            1,
            "It works with one expert a token, with all, with a token or none, and with scores of hundreds.",
            "squeezed dimensions where k or n is 1; an exponential of a score before the highest of its token"
            " was subtracted",
            {"extremes": EVERYTHING},
        ),
        Property(
            "refused",
            "robustness",
            1,
            "A k below 1 or above the number of experts is a ValueError that names both.",
            "topk's own error, which names neither, or a k of 0 that gives gates of no width",
            {
                "refused": is_refused(
                    "refusal", "ValueError", names=lambda c: (c.params["k"], c.params["shape"][2])
                )
            },
        ),
    ),
)
