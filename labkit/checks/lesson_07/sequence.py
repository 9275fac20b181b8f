"""The checks of sequence parallelism: the pair of operators, and the two products built on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.lesson_07.trial import calls_of, refused
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.sharded_evidence import calls_text, compared, finding, nbytes, within_group
from labkit.checks.shared.sharded_layer import charged, drawn
from labkit.record.memory import SavedTensors

# -- the pair


def pair_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Every rank's slice and its gradient for the gather, and partial sums and gradient for the scatter."""
    shape = tuple(case.params["shape"])
    size = len(groups_of(case)[0])
    whole = (shape[0], shape[1] * size, *shape[2:])
    found = {}
    for name, of in (("slice", shape), ("whole", whole), ("grad_slice", shape), ("grad_whole", whole)):
        found[name] = drawn(case, generator, case.ranks, *of)
    return found


HANDED = {"gather": ("slice", "grad_whole"), "scatter": ("whole", "grad_slice")}  # x, and its gradient


def _view(case: Case, tensor: Tensor) -> Tensor:
    """The same numbers, in memory of another order for a "layout" case."""
    if case.params["kind"] != "layout":
        return tensor.clone()
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def pair_on_rank(rank: Rank) -> None:
    """Both operators, forward and backward, each rank with numbers of its own."""
    group, case = enter_group(rank), rank.case
    gather, scatter = rank.student.GatherSequence, rank.student.ReduceScatterSequence
    if case.params["kind"] == "uneven":
        with rank.expect_error("refusal"):
            scatter.apply(rank.inputs["whole"][rank.rank][:, 1:], group)
        return
    for name, operator in (("gather", gather), ("scatter", scatter)):
        x, gradient = HANDED[name]
        given = _view(case, rank.inputs[x][rank.rank])
        back = _view(case, rank.inputs[gradient][rank.rank])
        given.requires_grad_()
        with rank.recording(f"{name} forward"):
            out = operator.apply(given, group)
        rank.answer(f"{name} output", out)
        with rank.attempt(charged(case, "input-gradients")), rank.recording(f"{name} backward"):
            out.backward(back)
        rank.answer(f"{name} input_grad", given.grad)
        rank.answer(f"{name} {x} after", given)
        rank.answer(f"{name} {gradient} after", back)


def judge_pair(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Gather joins in rank order, scatter adds and cuts; backward of each is the forward of the other."""
    kind = case.params["kind"]
    if kind == "uneven":
        names = inputs["whole"].shape[2] - 1, case.ranks
        yield from refused("uneven-sequence", answers, "refusal", ["ValueError"], *names)
        return
    values, gradients = charged(case, "forward-values"), charged(case, "input-gradients")
    for answer in answers:
        place = place_of(case, answer.rank)
        joined = {n: torch.cat([inputs[n][r] for r in place.members], dim=1) for n in ("slice", "grad_slice")}
        added = {
            n: place.block(torch.stack([inputs[n][r] for r in place.members]).sum(0), 1)
            for n in ("whole", "grad_whole")
        }
        yield compared(values, "gather: all tokens", joined["slice"], answer, "gather output")
        told = "scatter: this rank's tokens of the sum"
        yield compared(values, told, added["whole"], answer, "scatter output")
        told = "backward of gather: this rank's tokens of the sum"
        yield compared(gradients, told, added["grad_whole"], answer, "gather input_grad")
        told = "backward of scatter: the gradients of all tokens"
        yield compared(gradients, told, joined["grad_slice"], answer, "scatter input_grad")
        if kind == "subgroup":
            yield within_group("subgroup", case, answer)
        if kind == "values":
            for name, handed in HANDED.items():
                for each in handed:
                    told, given = f"{name}: {each} as it was handed over", inputs[each][answer.rank]
                    yield compared("callers-tensors", told, given, answer, f"{name} {each} after")
            if place.size > 1:
                yield from _pair_traffic(inputs, answer)


def _pair_traffic(inputs: Inputs, answer: RankAnswer) -> Iterator[Finding]:
    gather = [("all_gather", nbytes(inputs["slice"][0]))]
    scatter = [("reduce_scatter", nbytes(inputs["whole"][0]))]
    for phase, calls in (
        ("gather forward", gather),
        ("gather backward", scatter),
        ("scatter forward", scatter),
        ("scatter backward", gather),
    ):
        seen = calls_of(answer, phase)
        yield finding(
            "communication", seen == calls, f"{phase}: {calls_text(calls)}", calls_text(seen), answer
        )


# -- the two products


def products_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """For each group: x, weights and biases of `up` [inner, h] and `down` [h, inner], and a gradient."""
    p, groups = case.params, len(groups_of(case))
    lead = (groups, p["batch"], p["sequence"])
    shapes = {
        "x": (*lead, p["hidden"]),
        "up_weight": (groups, p["inner"], p["hidden"]),
        "up_bias": (groups, p["inner"]),
        "down_weight": (groups, p["out"], p["inner"]),
        "down_bias": (groups, p["out"]),
        "grad_output": (*lead, p["out"]),
    }
    return {name: drawn(case, generator, *shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}


CUT = {"up_weight": 0, "up_bias": 0, "down_weight": 1, "down_bias": None}
Products = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _two_products(state: dict[str, Tensor], up: Products, down: Products, bias: bool) -> Tensor:
    """tanh between two products, so that each has a gradient of its own."""
    inner = torch.tanh(up(state["x"], state["up_weight"], state["up_bias"] if bias else None))
    return down(inner, state["down_weight"], state["down_bias"] if bias else None)


def products_on_rank(rank: Rank) -> None:
    """Forward and backward through both products; what is kept between."""
    group, place, case = enter_group(rank), place_of(rank.case, rank.rank), rank.case
    state = {"x": place.block(rank.inputs["x"][place.index], 1).clone().requires_grad_()}
    for name, dim in CUT.items():
        state[name] = place.block(rank.inputs[name][place.index], dim).clone().requires_grad_()
    column, row = rank.student.sequence_column_parallel, rank.student.sequence_row_parallel
    bias = case.params.get("bias", True)
    saved = SavedTensors(leave_out=[state[name] for name in CUT])
    with rank.recording("forward"), saved.recording():
        out = _two_products(state, lambda *a: column(*a, group), lambda *a: row(*a, group), bias)
    rank.fact("kept", saved.num_bytes)
    saved.forget()
    rank.answer("output", out)
    with rank.attempt(charged(case, "input-gradients")), rank.recording("backward"):
        (out * place.block(rank.inputs["grad_output"][place.index], 1)).sum().backward()
    for name, tensor in state.items():
        rank.answer(f"grad.{name}", tensor.grad)


def judge_products(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Compare with F.linear on all tokens; count what is sent and kept."""
    kind, bias = case.params["kind"], case.params.get("bias", True)
    for answer in answers:
        place = place_of(case, answer.rank)
        whole = {n: inputs[n][place.index].clone().requires_grad_() for n in ("x", *CUT)}
        out = _two_products(whole, F.linear, F.linear, bias)
        out.backward(inputs["grad_output"][place.index])
        expected = place.block(out.detach(), 1)
        about = charged(case, "forward-values")
        yield compared(about, "this rank's tokens of the output", expected, answer, "output")
        for name, tensor in whole.items() if kind != "subgroup" else ():
            if tensor.grad is None:
                continue
            about = charged(case, "input-gradients" if name == "x" else "parameter-gradients")
            dim = 1 if name == "x" else CUT[name]
            told = f"gradient of {name}: {'whole' if dim is None else 'its block'}, as of all tokens"
            expected = place.block(tensor.grad, dim)
            yield compared(about, told, expected, answer, f"grad.{name}")
        if kind == "subgroup":
            yield within_group("subgroup", case, answer)
        if kind == "values" and place.size > 1:
            yield from _products_manners(case, inputs, answer, place.size)


def _products_manners(case: Case, inputs: Inputs, answer: RankAnswer, size: int) -> Iterator[Finding]:
    x, out = nbytes(inputs["x"][0]), nbytes(inputs["grad_output"][0])
    inner = nbytes(inputs["x"][0]) // case.params["hidden"] * case.params["inner"] // size
    kept, share = answer.facts["kept"], x // size + inner
    told = f"{share:,} bytes kept for backward: this rank's tokens of x, and tanh's output"
    yield finding("kept-slices", kept <= share + 64, told, f"{kept:,} bytes", answer)
    calls = [("all_gather", x // size), ("reduce_scatter", out)]
    yield _calls_of(answer, "forward", calls, 0)
    calls = [("all_gather", out // size), ("all_gather", x // size), ("reduce_scatter", x)]
    yield _calls_of(answer, "backward", calls, nbytes(inputs["down_bias"][0]))


def _calls_of(answer: RankAnswer, phase: str, calls: list[tuple[str, int]], small: int) -> Finding:
    large = sorted(call for call in calls_of(answer, phase) if call[0] != "all_reduce" or call[1] > small)
    beside = " beside the sum of the bias's gradient" if small else ""
    told = f"{phase}: {calls_text(sorted(calls))}{beside}"
    return finding("communication", large == sorted(calls), told, calls_text(large), answer)
