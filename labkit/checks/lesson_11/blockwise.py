"""What attention block by block must show."""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections.abc import Iterator

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_11.partial import (
    OBJECT_BYTES,
    answer_partial,
    causal,
    queries_keys_values,
    reported,
    tell_changed,
    unchanged,
    whole_attention,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.again import others
from labkit.checks.shared.beside import on_each, same
from labkit.checks.shared.held import weighed
from labkit.checks.shared.proportion import in_proportion
from labkit.checks.shared.worked import Worked
from labkit.record.live import LiveBytes

MANY_KEYS = 8  # in a block, for each number of a query: its scores outweigh what else is made
MEASURED = ("at products", "in Python")  # calls, by what is looked at in them
MOST_PASSES = (
    14  # over scores and outputs of all pairs: a product, a scale, a mask, exponentials and so on take 6
)


def block_case(name: str, kind: str, shape: list[int], block: int, seed: int, **params: object) -> Case:
    """shape: [..., s, d]. scale: of the scores. blank: so many of the first tokens have values of zeros."""
    sizes = {"shape": shape, "block": block, **params}
    return Case(name, 1, sizes, seed, kind=kind, own_parts=kind == "own-parts")


def _cases(seed: int) -> list[Case]:
    return [
        block_case("four blocks", "values", [2, 2, 32, 4], 8, seed),
        block_case("float32", "values", [3, 24, 6], 4, seed, dtype="float32"),
        block_case("thirty-two blocks", "values", [1, 1, 1024, 2], 32, seed),
        block_case("float32 in blocks of thirty-two", "values", [1, 2, 768, 2], 32, seed, dtype="float32"),
        block_case("one block", "values", [1, 2, 8, 4], 8, seed),
        block_case("scores of hundreds", "values", [2, 6, 24, 4], 8, seed, scale=600.0),
        block_case("a last block of three", "ragged", [1, 2, 19, 4], 8, seed),
        block_case("a block longer than the sequence", "ragged", [1, 1, 5, 4], 8, seed),
        block_case("many blocks and one token", "ragged", [1, 2, 769, 2], 32, seed),
        block_case("all that the process holds", "process", [1, 1, 1152, 2], 72, seed),
        block_case("with your own merge", "own-parts", [2, 3, 24, 4], 6, seed),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    found = queries_keys_values(case, generator)
    found["v"][..., : case.params.get("blank", 0), :] = 0.0
    return found


def _inputs_of_calls(case: Case, generator: torch.Generator) -> Inputs:
    """q, k and v, and others for each of the calls that are `MEASURED`: q.CALL and so on."""
    found = queries_keys_values(case, generator)
    for call in MEASURED:
        found |= {f"{name}.{call}": t for name, t in queries_keys_values(case, generator).items()}
    return found


def _attend(rank: Rank) -> None:
    """Answers attended.out, .lse, .empty; facts changed, products, largest, made, and held, bytes of tensors
    at most, in this call and one before it.
    """
    given = {name: rank.inputs[name].clone() for name in ("q", "k", "v")}
    q, k, v = given.values()
    earlier = others(q, k, v)
    with LiveBytes(earlier) as before:
        rank.student.blockwise_attention(*earlier, rank.params["block"])
    with LiveBytes([q, k, v]) as live, Worked() as worked:
        partial = rank.student.blockwise_attention(q, k, v, rank.params["block"])
    answer_partial(rank, "attended", partial)
    tell_changed(rank, given)
    rank.fact("products", worked.products)
    rank.fact("largest", worked.largest)
    rank.fact("made", worked.made)
    rank.fact("held", max(before.peak, live.peak))


class _AtProducts(Worked):
    """Sees the most that the process holds when a matrix product has been made, in arrays and lists too, and
    in short bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        before = self.products
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.products > before:
            self.peak = max(self.peak, weighed())
        return out


class _Peak(LiveBytes):
    """Knows the most alone: a history would count where Python's objects do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self.history.clear()
        return out


def _hold(rank: Rank) -> None:
    """Fact held: bytes of the process at most, beyond what it has before: of all that it holds, seen where
    matrix products are made, or of Python's objects and NumPy's arrays, which are seen at any time, or of
    tensors, in the calls where there is no more to see of them. A call goes before those that are measured
    so: what runs for the first time imports and caches. Each gets numbers of its own, so that none is known
    from the last. Answers out.CALL and lse.CALL of those, and the fact products, of the one in which they are
    looked at.
    """
    first, *measured = (_handed(rank, more) for more in ("", *(f".{call}" for call in MEASURED)))
    attend, block = rank.student.blockwise_attention, rank.params["block"]
    with _Peak(first) as before_them:
        attend(*first, block)
    gc.freeze()  # so that looking for rubbish at every product takes no time
    before = weighed()
    with _AtProducts() as at_products:
        partials = [attend(*measured[0], block)]
    tracemalloc.start()
    with _Peak(measured[1]) as among_them:
        partials.append(attend(*measured[1], block))
    in_python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    in_tensors = max(before_them.peak, among_them.peak)
    rank.fact("held", max(at_products.peak - before, in_python, in_tensors))
    rank.fact("products", at_products.products)
    gc.unfreeze()
    for call, (out, lse) in zip(MEASURED, partials, strict=True):
        rank.answer(f"out.{call}", out)
        rank.answer(f"lse.{call}", lse)


def _handed(rank: Rank, more: str) -> list[Tensor]:
    return [rank.inputs[f"{name}{more}"].clone() for name in ("q", "k", "v")]


def _computed_where_measured(evidence: Evidence) -> Iterator[Finding]:
    """What is held is seen at products: without any it would not be."""
    for answer in evidence.answers:
        seen = answer.facts["products"]
        told = "matrix products in the call whose memory is counted"
        yield Finding(seen > 0, told, f"{seen:,} operations", answer.rank)
        for call in MEASURED:
            q, k, v = (evidence.inputs[f"{name}.{call}"] for name in ("q", "k", "v"))
            positions = torch.arange(q.shape[-2])
            whole = whole_attention(q, k, v, causal(positions, positions))
            found = [answer.tensors.get(f"{name}.{call}") for name in ("out", "lse")]
            for name, expected, one in zip(("output", "lse"), whole, found, strict=True):
                yield in_proportion(f"{name} of causal attention", [expected], [one], answer.rank)


def _is_attention(evidence: Evidence) -> Iterator[Finding]:
    q, k, v = (evidence.inputs[name] for name in ("q", "k", "v"))
    positions = torch.arange(q.shape[-2])
    whole = whole_attention(q, k, v, causal(positions, positions))
    for answer in evidence.answers:
        for name, tensor in reported("attended", whole).items():
            yield same(f"{name.rpartition('.')[2]} of causal attention", tensor, answer, name)


def block_sizes(case: Case) -> list[int]:
    """Tokens of each block."""
    s, block = case.params["shape"][-2], case.params["block"]
    return [min(block, s - start) for start in range(0, s, block)]


def _never_larger(evidence: Evidence, answer: RankAnswer) -> Finding:
    *leading, s, d = evidence.case.params["shape"]
    block = evidence.case.params["block"]
    most, largest = math.prod(leading) * max(block * block, s * d), answer.facts["largest"]
    told = f"no tensor of more than {most:,} numbers: the output, or {block} x {block} scores a head"
    return Finding(largest <= most, told, f"one of {largest:,}", answer.rank)


def _pair_by_pair(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Room for the output and its lse four times, as their pieces and what is made of them, and for the
    scores of one pair ten times: the longest cases have more pairs than that in a row of blocks.
    """
    *leading, s, d = evidence.case.params["shape"]
    numbers = math.prod(leading) * (4 * s * (d + 1) + 10 * evidence.case.params["block"] ** 2)
    objects = OBJECT_BYTES if evidence.case.kind == "process" else 0
    most, held = numbers * evidence.inputs["q"].element_size() + objects, answer.facts["held"]
    told = f"at most {most:,} bytes at a time: the scores of one pair of blocks, and outputs"
    return Finding(held <= most, told, f"{held:,} bytes", answer.rank)


def _pairs_of_the_past(case: Case) -> list[tuple[int, int]]:
    """Queries and keys of each pair of blocks, were all of them of full size."""
    sizes = [case.params["block"]] * len(block_sizes(case))
    return [(rows, keys) for i, rows in enumerate(sizes) for keys in sizes[: i + 1]]


def _only_the_past(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Two products for each pair of a block of queries and one of keys that is not in its future. Who cuts
    blocks on the diagonal once more needs fewer, but no fewer than for the keys that queries see. A merge of
    two partials may be a product too, as large as one with a single key; and a last block that is shorter may
    be filled up.
    """
    *leading, s, d = evidence.case.params["shape"]
    pairs = _pairs_of_the_past(evidence.case)
    of_a_score = 2 * 2 * math.prod(leading) * d
    most = of_a_score * sum(rows * (keys + 1) for rows, keys in pairs)
    seen = answer.facts["products"]
    told = f"at most {most:,} operations in products: {len(pairs)} pairs of blocks"
    return Finding(of_a_score * s * (s + 1) // 2 <= seen <= most, told, f"{seen:,} operations", answer.rank)


def _past_element_by_element(evidence: Evidence) -> Iterator[Finding]:
    """Products can be made of other operations. Where blocks are large, nearly all elements are scores, or
    what is made of them.
    """
    *leading, _, d = evidence.case.params["shape"]
    pairs = _pairs_of_the_past(evidence.case)
    if evidence.case.params["block"] < MANY_KEYS * d:
        return
    most = MOST_PASSES * math.prod(leading) * sum(rows * (keys + d + 1) for rows, keys in pairs)
    told = f"at most {most:,} elements made by all operations together: {len(pairs)} pairs of blocks"
    for answer in evidence.answers:
        made = answer.facts["made"]
        yield Finding(made <= most, told, f"{made:,} elements", answer.rank)


RUN = Run(_attend, _inputs)
EXERCISE = Exercise(
    "11.blockwise-attention",
    "Attention block by block",
    ("blockwise_attention",),
    {"values": RUN, "ragged": RUN, "own-parts": RUN, "process": Run(_hold, _inputs_of_calls)},
    _cases,
    (
        Property(
            "values",
            "numbers",
            3,
            "Output and lse are those of causal attention, and what was given is as it was.",
            "the block on the diagonal needs a mask, and those before it none",
            {"values": every(_is_attention, on_each(unchanged))},
        ),
        Property(
            "memory",
            "mechanism",
            2,
            "The scores of one pair of blocks at a time are there, in whatever form, never those of the whole"
            " sequence.",
            "queries are cut into blocks too, not only keys; or the scores of all pairs were kept",
            {
                "values": every(on_each(_never_larger), on_each(_pair_by_pair)),
                "process": every(on_each(_pair_by_pair), _computed_where_measured),
            },
            {"ragged": on_each(_pair_by_pair)},
        ),
        Property(
            "work",
            "mechanism",
            2,
            "Pairs of blocks in which every key is in the future are not computed.",
            "they are computed and masked: twice the work",
            {"values": every(on_each(_only_the_past), _past_element_by_element)},
            {"ragged": _past_element_by_element},
        ),
        Property(
            "ragged",
            "robustness",
            1,
            "The last block may be shorter.",
            "the number of blocks was rounded down, or the rest joined the block before",
            {"ragged": every(_is_attention, on_each(_never_larger), on_each(_only_the_past))},
        ),
        Property(
            "own-parts",
            "robustness",
            1,
            "It works with your own merge.",
            "an earlier exercise does not pass yet; the other properties are judged with its reference",
            {"own-parts": _is_attention},
        ),
    ),
    builds_on=("11.merge-partials",),
    forbids=("torch.nn.functional.scaled_dot_product_attention",),
)
