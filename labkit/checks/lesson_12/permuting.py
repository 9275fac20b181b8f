"""What bringing rows in the order of experts must show, and bringing them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_12.handed import as_handed, tell_changed, turned
from labkit.checks.lesson_12.reference import drawn_experts
from labkit.checks.rank import Rank
from labkit.checks.shared.again import others
from labkit.checks.shared.beside import on_each, same
from labkit.checks.shared.split import drawn, dtype_of
from labkit.checks.shared.worked import Worked
from labkit.torch_private import tree_iter

PERMUTE_ID = "12.permute"
FEW = 512  # elements, where there are few rows
MOST_PASSES = 8  # over the largest tensor there may be: column by column it is one for each
# of torch's linear algebra what solves, inverts or factors, and transforms of Fourier's; and what does not
_OF_WHOLE_MATRIX = ("linalg_", "_linalg_", "lu_", "cholesky", "triangular_solve", "ormqr", "_fft_")
_OF_NUMBERS = ("linalg_vector_norm", "linalg_vecdot", "linalg_cross")
BACKWARD, AGAIN = "backward: ", "without a graph: "  # phases beside forward
ROUNDINGS = 100  # of numbers of about 1, each by half of what the dtype tells apart: more than a sum has


class Moved(Worked):
    """sparse: whether an operation had a sparse tensor among its operands. solved: operations on a matrix as
    a whole, such as its inverse times rows, of which no products are known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sparse, self.solved = False, list[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        operands = tree_iter((args, kwargs))
        self.sparse |= any(t.layout != torch.strided for t in operands if isinstance(t, Tensor))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def computed(self, func: Any, inputs: Any, out: Any) -> None:
        """Count it."""
        super().computed(func, inputs, out)
        name = func._schema.name.rpartition("::")[2]
        if name.startswith(_OF_WHOLE_MATRIX) and name not in _OF_NUMBERS:
            self.solved.append(name)

    def tell(self, rank: Rank, phase: str = "") -> None:
        """Facts products, largest, made, sparse and solved, of a phase."""
        for what in ("products", "largest", "made", "sparse", "solved"):
            rank.fact(f"{phase}{what}", getattr(self, what))


class Permuted(NamedTuple):
    """rows: [n k, h], by expert; places: [n k], which copy each row is; counts: [E]."""

    rows: Tensor
    places: Tensor
    counts: Tensor


def permuted(tokens: Tensor, experts: Tensor, num_experts: int) -> Permuted:
    """A copy of each token for each of its experts, ordered by expert and then by token."""
    n, k = experts.shape
    order = sorted(range(n * k), key=lambda copy: (int(experts[copy // k, copy % k]), copy))
    places = torch.tensor(order, dtype=torch.long)
    counts = torch.tensor([int((experts == e).sum()) for e in range(num_experts)])
    return Permuted(tokens[places // k], places, counts)


def unpermuted(rows: Tensor, places: Tensor, gates: Tensor) -> Tensor:
    """[n, h]: what comes back for each token, added up by its gates."""
    wide = torch.promote_types(rows.dtype, gates.dtype)
    copies = torch.zeros_like(rows, dtype=wide).index_copy(0, places, rows.to(wide))
    return (copies.view(*gates.shape, rows.shape[1]) * gates.unsqueeze(-1)).sum(1).to(rows.dtype)


def permute_case(name: str, kind: str, shape: list[int], k: int, seed: int, **params: object) -> Case:
    """shape: [n, h, E]. used: the experts that are visited, default all. dtype: of tokens and rows. gates:
    the gates' dtype, by default the rows', or float32 where that is narrower. turned: experts and gates are
    stored column after column.
    """
    return Case(name, 1, {"shape": shape, "k": k, **params}, seed, kind=kind)


def both_of(dtype: str) -> dict[str, str]:
    """Rows and gates of one dtype."""
    return {"dtype": dtype, "gates": dtype}


def _cases(seed: int) -> list[Case]:
    return [
        permute_case("two of six", "order", [10, 7, 6], 2, seed),
        permute_case("one of four, float32", "order", [9, 5, 4], 1, seed, dtype="float32"),
        permute_case("experts without tokens", "idle", [6, 8, 7], 2, seed, used=[1, 2, 5]),
        permute_case("no tokens", "idle", [0, 5, 4], 2, seed),
        permute_case("experts that are a view", "idle", [7, 4, 5], 3, seed, turned=True),
        permute_case("three hundred experts", "order", [40, 3, 300], 4, seed),
        permute_case("many numbers", "order", [64, 64, 4], 2, seed),
        permute_case("one token", "order", [1, 4, 5], 2, seed),
        permute_case("one of five, bfloat16", "order", [12, 6, 5], 1, seed, dtype="bfloat16"),
        permute_case("three of six", "back", [8, 5, 6], 3, seed),
        permute_case("one, float32", "back", [9, 6, 4], 1, seed, dtype="float32"),
        permute_case("many numbers, back", "back", [64, 64, 4], 2, seed),
        permute_case("back to one token", "back", [1, 4, 5], 2, seed),
        permute_case("back to no tokens", "back-idle", [0, 5, 4], 2, seed),
        permute_case("gates that are a view", "back-idle", [7, 4, 5], 3, seed, turned=True),
        permute_case("rows in float64, gates in float32", "wide", [7, 5, 6], 3, seed, gates="float32"),
        permute_case("rows and gates in bfloat16", "wide", [7, 5, 6], 3, seed, **both_of("bfloat16")),
        permute_case("rows in bfloat16", "low", [24, 5, 6], 4, seed, dtype="bfloat16"),
        permute_case(
            "rows in float32, gates in float64", "low", [24, 5, 6], 3, seed, dtype="float32", gates="float64"
        ),
    ]


def _ordered_inputs(case: Case, generator: torch.Generator) -> Inputs:
    n, hidden, num_experts = case.params["shape"]
    k = case.params["k"]
    among = case.params.get("used", list(range(num_experts)))
    return {
        "tokens": drawn(case, generator, n, hidden),
        "experts": drawn_experts(generator, n, k, among),
        "grad": drawn(case, generator, n * k, hidden),
    }


def _back_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Rows in any order: it need not be that of experts."""
    n, hidden, _ = case.params["shape"]
    k = case.params["k"]
    gates = torch.randn(n, k, generator=generator, dtype=torch.float64)
    usual = str(torch.promote_types(dtype_of(case), torch.float32)).removeprefix("torch.")
    return {
        "rows": drawn(case, generator, n * k, hidden),
        "places": torch.randperm(n * k, generator=generator),
        "gates": gates.to(getattr(torch, case.params.get("gates", usual))),
        "grad": drawn(case, generator, n, hidden),
    }


def _permute(rank: Rank) -> None:
    """Answers rows, places, counts, grad.tokens and, without a graph, again. Fact changed, and those that
    `Moved` tells, forward, in backward and without a graph.
    """
    tokens, experts = rank.inputs["tokens"].clone().requires_grad_(), rank.inputs["experts"].clone()
    if "turned" in rank.params:
        experts = turned(experts)
    rank.student.permute(*others(tokens), experts.flip(0), rank.params["shape"][2])
    with Moved() as worked:
        found = Permuted(*rank.student.permute(tokens, experts, rank.params["shape"][2]))
    worked.tell(rank)
    for name, tensor in found._asdict().items():
        rank.answer(name, tensor)
    with Moved() as backward, rank.attempt("gradients"):
        (found.rows * rank.inputs["grad"]).sum().backward()
    backward.tell(rank, BACKWARD)
    rank.answer("grad.tokens", tokens.grad)
    with torch.no_grad(), Moved() as without:
        again, *_ = rank.student.permute(tokens.detach(), experts, rank.params["shape"][2])
    without.tell(rank, AGAIN)
    rank.answer("again", again)
    tell_changed(rank, {"tokens": tokens, "experts": experts})


def _unpermute(rank: Rank) -> None:
    """Answers out, grad.rows, grad.gates and, without a graph, again. Facts as of `_permute`. Before, as
    many rows of other experts are permuted.
    """
    rows, gates = (rank.inputs[name].clone() for name in ("rows", "gates"))
    gates = turned(gates) if "turned" in rank.params else gates
    rows, gates, places = rows.requires_grad_(), gates.requires_grad_(), rank.inputs["places"].clone()
    rank.student.permute(
        rank.inputs["grad"], torch.arange(gates.shape[1]).repeat(len(gates), 1), rank.params["shape"][2]
    )
    rank.student.unpermute(*others(rows), places.flip(0), gates.detach())
    with Moved() as worked:
        out = rank.student.unpermute(rows, places, gates)
    worked.tell(rank)
    rank.answer("out", out)
    with Moved() as backward, rank.attempt("gradients"):
        (out * rank.inputs["grad"]).sum().backward()
    backward.tell(rank, BACKWARD)
    rank.answer("grad.rows", rows.grad)
    rank.answer("grad.gates", gates.grad)
    with torch.no_grad(), Moved() as without:
        again = rank.student.unpermute(rows.detach(), places, gates.detach())
    without.tell(rank, AGAIN)
    rank.answer("again", again)
    tell_changed(rank, {"rows": rows, "places": places, "gates": gates})


TOLD = {
    "rows": "rows ordered by expert, those of one expert as their tokens stand",
    "places": "for each row which copy it is: token x k + place among the token's experts",
    "counts": "rows for each expert",
}


def _is_ordered(evidence: Evidence) -> Iterator[Finding]:
    tokens, experts = evidence.inputs["tokens"], evidence.inputs["experts"]
    expected = permuted(tokens, experts, evidence.case.params["shape"][2])
    for answer in evidence.answers:
        for name, tensor in expected._asdict().items():
            yield same(TOLD[name], tensor, answer, name)
        yield same(f"{TOLD['rows']}, without a graph", expected.rows, answer, "again")


def _tokens_gradient(evidence: Evidence) -> Iterator[Finding]:
    tokens = evidence.inputs["tokens"].clone().requires_grad_()
    rows = permuted(tokens, evidence.inputs["experts"], evidence.case.params["shape"][2]).rows
    (expected,) = torch.autograd.grad((rows * evidence.inputs["grad"]).sum(), tokens)
    for answer in evidence.answers:
        yield same("gradient of a token: the sum of its rows' gradients", expected, answer, "grad.tokens")


def _is_back(evidence: Evidence) -> Iterator[Finding]:
    expected = unpermuted(*(evidence.inputs[name] for name in ("rows", "places", "gates")))
    for answer in evidence.answers:
        told = "for each token the sum of its rows, each times its gate"
        yield same(told, expected, answer, "out")
        yield same(f"{told}, without a graph", expected, answer, "again")


def _back_gradients(evidence: Evidence) -> Iterator[Finding]:
    rows, gates = (evidence.inputs[name].clone().requires_grad_() for name in ("rows", "gates"))
    out = unpermuted(rows, evidence.inputs["places"], gates)
    found = torch.autograd.grad((out * evidence.inputs["grad"]).sum(), (rows, gates))
    for answer in evidence.answers:
        for name, gradient in zip(("rows", "gates"), found, strict=True):
            yield same(f"gradient of the {name}", gradient, answer, f"grad.{name}")


def _rounded_once(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Terms that nearly cancel leave little, and of that no more may be lost than one rounding."""
    rows, places, gates = (evidence.inputs[name] for name in ("rows", "places", "gates"))
    exact = unpermuted(rows.double(), places, gates.double())
    seen = answer.tensors.get("out")
    wide = torch.promote_types(rows.dtype, gates.dtype)
    told = f"sums in {wide}, rounded to the rows' {rows.dtype} once".replace("torch.", "")
    if seen is None or seen.dtype != rows.dtype or seen.shape != exact.shape:
        return Finding(
            False, told, "nothing" if seen is None else f"{seen.dtype}, {tuple(seen.shape)}", answer.rank
        )
    once, lost = torch.finfo(rows.dtype).eps / 2, ROUNDINGS * torch.finfo(wide).eps
    off = (seen.double() - exact).abs() > once * exact.abs() + lost
    return Finding(
        not off.any(), told, f"{int(off.sum())} of {off.numel()} rounded more than once", answer.rank
    )


def _no_products(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    """Neither as a product nor element by element, for which each row would be made for every token. How
    gradients of what was moved one by one are added up in backward is torch's affair.
    """
    (n, hidden, _), k, most = evidence.case.params["shape"], evidence.case.params["k"], _most(evidence.case)
    for phase in ("", BACKWARD, AGAIN):
        yield _products_up_to(0, answer, phase)
        yield _nothing_solved(answer, phase)
        told = f"{phase}no tensor of more than {most:,} elements: {n * k} rows of {hidden}"
        largest = answer.facts[f"{phase}largest"]
        yield Finding(largest <= most, told, f"one of {largest:,}", answer.rank)
    for phase in ("", AGAIN):
        yield Finding(not answer.facts[f"{phase}sparse"], f"{phase}no sparse matrix", "one", answer.rank)
        yield _made_up_to(MOST_PASSES * most, answer, phase)


def _nothing_multiplied(evidence: Evidence) -> Iterator[Finding]:
    return (finding for answer in evidence.answers for finding in _no_products(evidence, answer))


def _most(case: Case) -> int:
    """Elements of the largest tensor that may be made: rows, or which expert or which other row each has."""
    (n, hidden, num_experts), k = case.params["shape"], case.params["k"]
    return max(2 * n * k * max(hidden, num_experts, n * k), FEW)


def _made_up_to(most: int, answer: RankAnswer, phase: str) -> Finding:
    made = answer.facts[f"{phase}made"]
    told = f"{phase}at most {most:,} elements made by all operations together"
    return Finding(made <= most, told, f"{made:,} elements", answer.rank)


def _each_row_once(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    """The gates times a token's own rows is a product too, with two in backward, and no matrix of zeros and
    ones.
    """
    own = 2 * evidence.inputs["rows"].numel()
    for phase, most in (("", own), (BACKWARD, 3 * own), (AGAIN, own)):
        yield _products_up_to(most, answer, phase)
        yield _nothing_solved(answer, phase)
    for phase in ("", AGAIN):
        yield _made_up_to(MOST_PASSES * _most(evidence.case), answer, phase)


def _each_row_weighted_once(evidence: Evidence) -> Iterator[Finding]:
    return (finding for answer in evidence.answers for finding in _each_row_once(evidence, answer))


def _products_up_to(most: int, answer: RankAnswer, phase: str) -> Finding:
    products = answer.facts[f"{phase}products"]
    told = f"at most {most:,} operations in matrix products" if most else "no matrix product"
    seen = f"{products:,} operations in products"
    return Finding(products <= most, f"{phase}{told}", seen, answer.rank)


def _nothing_solved(answer: RankAnswer, phase: str) -> Finding:
    solved = answer.facts[f"{phase}solved"]
    return Finding(not solved, f"{phase}no matrix solved or inverted", ", ".join(solved), answer.rank)


ORDERED = Run(_permute, _ordered_inputs)
BACK = Run(_unpermute, _back_inputs)
EXERCISE = Exercise(
    PERMUTE_ID,
    "Rows in the order of experts, and back",
    ("permute", "unpermute"),
    {"order": ORDERED, "idle": ORDERED, **dict.fromkeys(("back", "back-idle", "low", "wide"), BACK)},
    _cases,
    (
        Property(
            "order",
            "numbers",
            2,
            "Each token has a row for each of its experts, in the order of experts; places say whose.",
            "a sort that is not stable leaves the rows of one expert in any order",
            {"order": every(_is_ordered, on_each(as_handed))},
        ),
        Property(
            "back",
            "numbers",
            2,
            "Each token gets the sum of its rows, each times its gate.",
            "gates multiply rows that are still in the other order; or the permutation was applied again"
            " where its inverse is meant",
            {"back": every(_is_back, on_each(as_handed))},
        ),
        Property(
            "gradients",
            "numbers",
            2,
            "Gradients reach tokens, rows and gates.",
            "a result written into a tensor that autograd does not follow",
            {"order": _tokens_gradient, "back": _back_gradients},
        ),
        Property(
            "moved",
            "mechanism",
            1,
            "Rows are moved, not multiplied.",
            "a product with a matrix of zeros and ones costs as much as an expert does",
            {"order": _nothing_multiplied, "back": _each_row_weighted_once},
            {"idle": _nothing_multiplied}
            | dict.fromkeys(("back-idle", "low", "wide"), _each_row_weighted_once),
        ),
        Property(
            "idle",
            "robustness",
            2,
            "Experts may be without tokens, the last ones too, and there may be no tokens at all; experts and"
            " gates may be views of any layout.",
            "counts end at the last expert that is visited: minlength",
            {"idle": every(_is_ordered, _tokens_gradient), "back-idle": every(_is_back, _back_gradients)},
        ),
        Property(
            "low-precision",
            "robustness",
            2,
            "Sums are in the wider of the rows' and the gates' dtypes, and rounded once, to the rows'.",
            "gates rounded to the rows' dtype before they multiply, or rows to the gates'",
            {"low": on_each(_rounded_once), "wide": _is_back},
        ),
    ),
)
