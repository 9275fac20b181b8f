"""What `07.sequence-parallel-linear` must show: two products, tokens divided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_07.modules import (
    PAIRS,
    TORCHS_OWN,
    any_layout,
    case_maker,
    group_alone,
    subgroup,
)
from labkit.checks.lesson_07.pair import PAIR_ID
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_are, nbytes, same, stays_in_group
from labkit.checks.shared.calls_inside import INSIDE
from labkit.checks.shared.held import bytes_kept
from labkit.checks.shared.holding import holding
from labkit.checks.shared.inside import as_inside
from labkit.checks.shared.left import left_since
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.proportion import in_proportion
from labkit.checks.shared.split import drawn, in_another_order

PRODUCTS_ID = "07.sequence-parallel-linear"
CUT = {"up_weight": 0, "up_bias": 0, "down_weight": 1, "down_bias": None}
DIVIDED = {  # along which dimension ranks have their part of what is drawn
    **{"x": 1, "grad_output": 1, "inner": -1, "grad_inner": -1},
    **CUT,
}
WEIGHTS = ["up_weight", "down_weight"]
ALONE = {"up": ("x", "grad_inner"), "down": ("inner", "grad_output")}  # a product's input and gradient
Products = Callable[[Tensor, Tensor, Tensor | None], Tensor]
SECOND = 2.0  # times the first gradient of the output, in the second pass
KEPT_SLACK = 32 * 1024  # nodes of autograd, and what a busy machine does beside it: 25 KB were seen
LARGE = {"batch": 4, "sequence": 64, "hidden": 128, "inner": 64, "out": 32}  # of which KEPT_SLACK is little
products_case = case_maker(batch=2, sequence=8, hidden=5, inner=12, out=3)


def _cases(seed: int) -> list[Case]:
    return [
        products_case("two ranks", "values", 2, seed, late=[1]),
        products_case("without bias", "bare", 2, seed, bias=False),
        products_case("float32", "values", 2, seed, dtype="float32"),
        products_case("views", "layout", 2, seed),
        products_case("four ranks", "values", 4, seed, batch=3),
        products_case("what is kept", "kept", 2, seed, **LARGE),
        products_case("x that asks for no gradient", "first-layer", 2, seed),
        products_case("some ask for no gradient", "frozen", 2, seed, frozen=["up_weight", "down_bias"]),
        products_case("bfloat16", "low", 2, seed, dtype="bfloat16"),
        products_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each group: x, weights and biases of `up` [inner, h] and `down` [h, inner], and a gradient; inner
    and its gradient, for the products alone. Where the case names a rank as `zeros_on`, x and the gradient of
    the output are zeros there, and on the next one the block of down's weight, and so the gradient of inner.
    """
    p, groups = case.params, len(groups_of(case))
    lead = (groups, p["batch"], p["sequence"])
    shapes = {
        "x": (*lead, p["hidden"]),
        "up_weight": (groups, p["inner"], p["hidden"]),
        "up_bias": (groups, p["inner"]),
        "down_weight": (groups, p["out"], p["inner"]),
        "down_bias": (groups, p["out"]),
        "grad_output": (*lead, p["out"]),
        "inner": (*lead, p["inner"]),
        "grad_inner": (*lead, p["inner"]),
    }
    found = {name: drawn(case, generator, *shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    for name, ranks_on in (("x", 0), ("grad_output", 0), ("down_weight", 1)) if "zeros_on" in p else ():
        place = place_of(case, (p["zeros_on"] + ranks_on) % case.ranks)
        place.block(found[name][place.index], DIVIDED[name]).zero_()
    return found


def _hand(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """This rank's tokens and blocks."""
    place = place_of(case, rank)
    return {name: place.block(inputs[name][place.index], dim) for name, dim in DIVIDED.items()}


def _state(rank: Rank) -> dict[str, Tensor]:
    """Copies of x, weights and biases, which ask for gradients: x not in a first layer, and none of those
    that the case names as frozen.
    """
    asks = dict.fromkeys(("x", *CUT), True) | dict.fromkeys(rank.params.get("frozen", []), False)
    asks["x"] = rank.case.kind != "first-layer" and not rank.params.get("first_layer", False)
    return {name: rank.inputs[name].clone().requires_grad_(asked) for name, asked in asks.items()}


def _two_products(state: dict[str, Tensor], up: Products, down: Products, bias: bool) -> Tensor:
    """tanh between two products, so that each has a gradient of its own."""
    inner = torch.tanh(up(state["x"], state["up_weight"], state["up_bias"] if bias else None))
    return down(inner, state["down_weight"], state["down_bias"] if bias else None)


def _use_both(rank: Rank) -> None:
    """Forward and backward through both products; between them they are used once more, in a group of this
    rank alone. In a case "first-layer" x asks for no gradient. Then the same once more, with the same tensors
    and gradients that add up, of an x that another operation has made, and a forward without gradients; at
    last backward through the first graph again. Answers: output, grad.NAME; sum.NAME, after both; evaluated;
    again.NAME, of parameters. Fact: asks, which tensors ask for a gradient afterwards and did not before.
    Recordings: of each.
    """
    group, alone, bias = enter_group(rank), group_alone(rank), rank.params.get("bias", True)
    state = _state(rank)
    column, row = rank.student.sequence_column_parallel, rank.student.sequence_row_parallel

    def forward(x: Tensor) -> Tensor:
        return _two_products(state | {"x": x}, lambda *a: column(*a, group), lambda *a: row(*a, group), bias)

    with rank.recording("forward"):
        out = forward(state["x"])
    rank.answer("output", out)
    other = {name: 1 - tensor.detach() for name, tensor in state.items()}
    _two_products(other, lambda *a: column(*a, alone), lambda *a: row(*a, alone), bias)
    with rank.attempt("input-gradients"), rank.recording("backward"):
        loss = (out * rank.inputs["grad_output"]).sum()
        loss.backward(retain_graph=True)
    for name, tensor in state.items():
        rank.answer(f"grad.{name}", tensor.grad)
    with rank.attempt("parameter-gradients"):
        with rank.recording(f"forward, {INSIDE}"):
            out = forward(as_inside(state["x"]))
        with rank.recording(f"backward, {INSIDE}"):
            (out * SECOND * rank.inputs["grad_output"]).sum().backward()
    for name, tensor in state.items():
        rank.answer(f"sum.{name}", tensor.grad)
    with torch.no_grad(), rank.recording("evaluation"):
        rank.answer("evaluated", forward(state["x"]))
    asked = _state(rank)
    rank.fact("asks", [name for name, t in state.items() if t.requires_grad != asked[name].requires_grad])
    if rank.case.kind == "values":
        with rank.attempt("parameter-gradients"), rank.recording("second backward"):
            for tensor in state.values():
                tensor.grad = None
            loss.backward()
        for name in CUT:
            rank.answer(f"again.{name}", state[name].grad)


def _use_views(rank: Rank) -> None:
    """Each product alone, its input, weight and gradient in memory of another order on every second rank.

    Answers: NAME.output, NAME.x, NAME.weight, and NAME.gradient, what was handed to backward, afterwards.
    """
    group, view = enter_group(rank), torch.clone if rank.rank % 2 else in_another_order
    products = {"up": rank.student.sequence_column_parallel, "down": rank.student.sequence_row_parallel}
    for name, (given, gradient) in ALONE.items():
        x = view(rank.inputs[given]).requires_grad_()
        weight = view(rank.inputs[f"{name}_weight"]).requires_grad_()
        bias = rank.inputs[f"{name}_bias"].clone().requires_grad_()
        out, handed = products[name](x, weight, bias, group), view(rank.inputs[gradient])
        with rank.attempt("any-layout"):
            out.backward(handed)
        seen = {"output": out, "x": x.grad, "weight": weight.grad, "gradient": handed}
        for what, tensor in seen.items():
            rank.answer(f"{name}.{what}", tensor)


def _keep_for_backward(rank: Rank) -> None:
    """Fact: kept, the bytes that a forward leaves behind, beside its result, of an x that is a leaf or of one
    that is none, whichever are more; those too that stay for good, such as a buffer for all calls. Answers:
    grad.NAME of what backward then makes of it.
    """
    group, bias, state = enter_group(rank), rank.params.get("bias", True), _state(rank)
    column, row = rank.student.sequence_column_parallel, rank.student.sequence_row_parallel

    def forward(x: Tensor) -> Tensor:
        return _two_products(state | {"x": x}, lambda *a: column(*a, group), lambda *a: row(*a, group), bias)

    before = holding()
    of_leaf = nbytes(state["x"]) + bytes_kept(lambda: lambda: forward(state["x"]))  # the caller has x anyway
    of_made = bytes_kept(lambda: lambda: forward(as_inside(state["x"])))
    kept = max(of_leaf, of_made) + left_since(before)
    out = forward(state["x"])
    rank.fact("kept", kept - nbytes(out))
    (out * rank.inputs["grad_output"]).sum().backward()
    for name in WEIGHTS:
        rank.answer(f"grad.{name}", state[name].grad)


# -- judges


@dataclass(frozen=True)
class ProductsEvidence(Evidence):
    """Answers, to be held against F.linear on all tokens."""

    @cached_property
    def references(self) -> list[Inputs]:
        """For each group the output, and as "grad.NAME" the gradient of each tensor that has one."""
        return [self._reference(index) for index in range(len(groups_of(self.case)))]

    def _reference(self, index: int) -> Inputs:
        frozen = self.case.params.get("frozen", [])
        whole = {n: self.inputs[n][index].clone().requires_grad_(n not in frozen) for n in ("x", *CUT)}
        out = _two_products(whole, F.linear, F.linear, self.case.params.get("bias", True))
        out.backward(self.inputs["grad_output"][index])
        gradients = {f"grad.{name}": t.grad for name, t in whole.items() if t.grad is not None}
        return {"output": out.detach(), **gradients}


def _right_alone(evidence: ProductsEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        place = place_of(evidence.case, answer.rank)
        for name, (given, gradient) in ALONE.items():
            asked = (given, f"{name}_weight", f"{name}_bias")
            x, weight, bias = (evidence.inputs[each][place.index].clone().requires_grad_() for each in asked)
            out = F.linear(x, weight, bias)
            out.backward(evidence.inputs[gradient][place.index])
            told = f"{name} with tensors that are not contiguous"
            yield same(
                f"{told}: output", place.block(out.detach(), DIVIDED[gradient]), answer, f"{name}.output"
            )
            for each, tensor, what in zip(asked, (x, weight), ("x", "weight"), strict=False):
                assert tensor.grad is not None
                part = place.block(tensor.grad, DIVIDED[each])
                yield same(f"{told}: gradient of {what}", part, answer, f"{name}.{what}")


def _gradient_kept(evidence: ProductsEvidence) -> Iterator[Finding]:
    """What backward is handed keeps its values."""
    for answer in evidence.answers:
        for name, (_, gradient) in ALONE.items():
            given = _hand(evidence.case, evidence.inputs, answer.rank)[gradient]
            yield same(
                f"{name}: the gradient that backward is given, as it was", given, answer, f"{name}.gradient"
            )


def _right_output(evidence: ProductsEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        place = place_of(evidence.case, answer.rank)
        expected = place.block(evidence.references[place.index]["output"], 1)
        yield same("this rank's tokens of the output", expected, answer, "output")
        yield same("the same without gradients", expected, answer, "evaluated")


def _asks_nothing(evidence: ProductsEvidence) -> Iterator[Finding]:
    """What asks for no gradient does not by being used."""
    for answer in evidence.answers:
        told, seen = "requires_grad of each tensor as it was", ", ".join(answer.facts["asks"])
        yield Finding(not seen, told, f"set for {seen}", answer.rank)


def _right_gradients(*names: str) -> Judge:
    def judge(evidence: ProductsEvidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            place = place_of(evidence.case, answer.rank)
            for name in names:
                whole = evidence.references[place.index].get(f"grad.{name}")
                if whole is not None:
                    part = "whole" if DIVIDED[name] is None else "its block"
                    told = f"gradient of {name}: {part}, as of all tokens"
                    own = place.block(whole, DIVIDED[name])
                    yield same(told, own, answer, f"grad.{name}")
                    told = f"{told}, added to by a second pass"
                    yield same(told, (1 + SECOND) * own, answer, f"sum.{name}")
                    if evidence.case.kind == "values" and name in CUT:
                        told = f"gradient of {name}, of a second backward through one graph"
                        yield same(told, own, answer, f"again.{name}")

    return judge


def _keeps_slices(evidence: ProductsEvidence) -> Iterator[Finding]:
    params, x = evidence.case.params, nbytes(evidence.inputs["x"][0])
    for answer in evidence.answers:
        size, kept = place_of(evidence.case, answer.rank).size, answer.facts["kept"]
        if size > 1:
            share = x // size + x // params["hidden"] * params["inner"] // size
            told = f"{share:,} bytes kept for backward: this rank's tokens of x, and tanh's output"
            yield Finding(kept <= share + KEPT_SLACK, told, f"{kept:,} bytes", answer.rank)


def _kept_enough(evidence: ProductsEvidence) -> Iterator[Finding]:
    """Of what was kept, or gathered again, backward makes the gradients of both weights."""
    for answer in evidence.answers:
        place = place_of(evidence.case, answer.rank)
        whole = evidence.references[place.index]
        expected = [place.block(whole[f"grad.{name}"], DIVIDED[name]) for name in WEIGHTS]
        seen = [answer.tensors.get(f"grad.{name}") for name in WEIGHTS]
        yield in_proportion("the gradients of both weights", expected, seen, answer.rank)


def _gathers_and_scatters(evidence: ProductsEvidence) -> Iterator[Finding]:
    """Beside the sum of the bias's gradient, of any dtype."""
    x, out = (nbytes(evidence.inputs[name][0]) for name in ("x", "grad_output"))
    bias = 8 * evidence.inputs["down_bias"][0].numel()
    for answer in evidence.answers:
        size = place_of(evidence.case, answer.rank).size
        if size > 1:
            forward = [("all_gather", x // size), ("reduce_scatter", out)]
            yield calls_are("forward", forward, answer)
            yield calls_are("evaluation", forward, answer)
            backward = [("all_gather", out // size), ("all_gather", x // size), ("reduce_scatter", x)]
            yield calls_are("backward", backward, answer, ignore=bias)
            yield calls_are(f"forward, {INSIDE}", forward, answer)
            yield calls_are(f"backward, {INSIDE}", backward, answer, ignore=bias)


_USED = Run(_use_both, _inputs, _hand, ProductsEvidence)
EXERCISE = Exercise(
    PRODUCTS_ID,
    "Two products, tokens divided",
    ("sequence_column_parallel", "sequence_row_parallel"),
    {
        "values": _USED,
        "kept": Run(_keep_for_backward, _inputs, _hand, ProductsEvidence),
        "bare": _USED,
        "first-layer": _USED,
        "frozen": _USED,
        "still": _USED,
        "low": _USED,
        "layout": Run(_use_views, _inputs, _hand, ProductsEvidence),
        "subgroup": _USED,
    },
    _cases,
    (
        Property(
            "forward-values",
            "numbers",
            2,
            "Each rank has its tokens of what F.linear gives.",
            "the bias was added t times",
            {"values": _right_output},
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            "Each rank has its tokens of the gradient of x, also where weight or bias ask for none, or a rank"
            " has zeros.",
            "reduce-scatter the gradient of the gathered x",
            {
                "values": _right_gradients("x"),
                "layout": _gradient_kept,
                "frozen": every(_right_gradients("x"), _asks_nothing),
                "still": _right_gradients("x", *CUT),
                "first-layer": _asks_nothing,
            },
        ),
        Property(
            "parameter-gradients",
            "numbers",
            3,
            "Blocks of weights have the gradient of all tokens, and so has the whole bias, also where others"
            " ask for none.",
            "the bias is added to this rank's tokens only: its gradient must be summed over the ranks",
            dict.fromkeys(("values", "first-layer", "frozen"), _right_gradients(*CUT)),
        ),
        Property(
            "kept-slices",
            "mechanism",
            2,
            "Backward keeps this rank's tokens of x, not all of them.",
            "F.linear keeps the gathered x: save the slice in a function of your own, and gather again",
            {"kept": every(_keeps_slices, _kept_enough)},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "Forward: one gather, one scatter. Backward: the same, and x gathered once more. 16-bit tensors"
            " go in 16 bits.",
            "an all_reduce where a reduce_scatter would do; or .float() in front of it",
            {"values": _gathers_and_scatters, "low": _gathers_and_scatters},
            dict.fromkeys(("bare", "still", "subgroup"), _gathers_and_scatters),
        ),
        Property(
            "no-bias",
            "robustness",
            1,
            "A product without bias works.",
            "bias is None",
            {"bare": every(_right_output, _right_gradients("x", *CUT))},
        ),
        any_layout(_right_alone),
        subgroup(every(_right_output, stays_in_group)),
    ),
    builds_on=(PAIR_ID,),
    forbids=TORCHS_OWN,
)
