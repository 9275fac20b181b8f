"""What the gradients of one block must show."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_11.partial import (
    as_views,
    causal,
    queries_keys_values,
    tell_changed,
    unchanged,
    whole_attention,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.again import others
from labkit.checks.shared.beside import on_each, same

GRADIENTS = ("q", "k", "v")


def pair_case(name: str, kind: str, shape: list[int], keys: int, seed: int, **params: object) -> Case:
    """shape: [..., s, d] of the whole; the block's queries are the last `rows` of it, its keys the `columns`
    from `keys` on, as many unless it says otherwise. views: the block does not lie together in memory.
    scale: of the scores. off: while autograd records nothing, as in a Function's backward.
    """
    settings = {"shape": shape, "keys": keys, "rows": 4, **params}
    return Case(name, 1, {"columns": settings["rows"], **settings}, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    return [
        pair_case("a block before", "past", [2, 2, 12, 3], 4, seed),
        pair_case("three keys, float32", "past", [1, 3, 8, 5], 0, seed, dtype="float32", columns=3),
        pair_case("views", "past", [2, 3, 12, 4], 4, seed, views=True),
        pair_case("scores of hundreds", "past", [2, 2, 12, 3], 4, seed, scale=600.0),
        pair_case("on the diagonal, float32", "diagonal", [2, 2, 12, 3], 8, seed, dtype="float32"),
        pair_case("scores of hundreds on the diagonal", "diagonal", [3, 4, 4, 3], 0, seed, scale=600.0),
        pair_case("one head, alone, within a backward", "diagonal", [4, 6], 0, seed, off=True),
    ]


def _whole(case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the last rows, what they give over all keys, and the lse."""
    rows = inputs["q"].shape[-2] - case.params["rows"]
    q = inputs["q"][..., rows:, :]
    positions = torch.arange(inputs["k"].shape[-2])
    out, lse = whole_attention(q, inputs["k"], inputs["v"], causal(positions[rows:], positions))
    return q, out, lse


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    inputs = queries_keys_values(case, generator)
    inputs["grad"] = queries_keys_values(case, generator)["k"][..., -case.params["rows"] :, :].contiguous()
    return inputs


def _block(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """What the student's function is given."""
    q, out, lse = _whole(case, inputs)
    keys = slice(case.params["keys"], case.params["keys"] + case.params["columns"])
    return {
        "q": q.contiguous(),
        "k": inputs["k"][..., keys, :].contiguous(),
        "v": inputs["v"][..., keys, :].contiguous(),
        "grad_out": inputs["grad"],
        "lse": lse,
        "delta": (inputs["grad"] * out).sum(-1),
    }


def _handed(case: Case, inputs: Inputs, rank: int) -> Inputs:
    return _block(case, inputs)


def _differentiate(rank: Rank) -> None:
    """Answers grad.q, grad.k, grad.v. Fact changed."""
    names = ("q", "k", "v", "grad_out", "lse", "delta")
    given = {name: rank.inputs[name].clone() for name in names}
    if rank.params.get("views"):
        given = as_views(given)
    with torch.set_grad_enabled("off" not in rank.params):
        rank.student.block_backward(*others(*given.values()), rank.case.kind == "diagonal")
        gradients = rank.student.block_backward(*given.values(), rank.case.kind == "diagonal")
    tell_changed(rank, given)
    for name, gradient in zip(GRADIENTS, gradients, strict=True):
        rank.answer(f"grad.{name}", gradient)


def _expected(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Autograd's, through attention over all keys: the block's keys as leaves of their own, and the queries
    once more for this block alone.
    """
    block = _block(case, inputs)
    first = case.params["keys"]
    leaves = {name: block[name].clone().requires_grad_() for name in GRADIENTS}
    positions = torch.arange(inputs["k"].shape[-2])
    rows = inputs["q"].shape[-2] - case.params["rows"]
    seen = causal(positions[rows:], positions)
    scale = leaves["q"].shape[-1] ** 0.5
    scores = (block["q"] @ inputs["k"].transpose(-2, -1)) / scale
    ours = slice(first, first + case.params["columns"])
    scores[..., ours] = leaves["q"] @ leaves["k"].transpose(-2, -1) / scale
    values = inputs["v"].clone()
    values[..., ours, :] = leaves["v"]
    out = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values
    gradients = torch.autograd.grad(out, list(leaves.values()), block["grad_out"])
    return dict(zip(GRADIENTS, gradients, strict=True))


def gradient_is(name: str) -> Judge:
    """A judge of one gradient."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        expected = _expected(evidence.case, evidence.inputs)[name]
        for answer in evidence.answers:
            yield same(f"d{name} of this block alone", expected, answer, f"grad.{name}")

    return judge


RUN = Run(_differentiate, _inputs, _handed)
EXERCISE = Exercise(
    "11.block-backward",
    "The gradients of one block",
    ("block_backward",),
    {"past": RUN, "diagonal": RUN},
    _cases,
    (
        Property(
            "values-gradient",
            "numbers",
            1,
            "dv is the block's probabilities, transposed, times grad_out.",
            "the probabilities are those of the whole row: exp(scores - lse)",
            {"past": gradient_is("v")},
        ),
        Property(
            "keys-gradient",
            "numbers",
            2,
            "dk is that of the whole row's softmax.",
            "delta, which other blocks have a part in, is subtracted before the probabilities multiply",
            {"past": gradient_is("k")},
        ),
        Property(
            "queries-gradient",
            "numbers",
            2,
            "dq is this block's part of the queries' gradient, and what was given is as it was.",
            "scores were divided by sqrt(d), and so are their gradients",
            {"past": every(gradient_is("q"), on_each(unchanged))},
        ),
        Property(
            "diagonal",
            "numbers",
            2,
            "On the diagonal what a query does not see gets no gradient, and gives none, in one head too.",
            "scores of the future are masked here too",
            {"diagonal": every(*map(gradient_is, GRADIENTS), on_each(unchanged))},
        ),
    ),
)
