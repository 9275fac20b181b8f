"""Unseen cases of lesson 11: other sizes and dtypes, two to five ranks, other groups, a lone rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from labkit.checks.case import Case
from labkit.checks.lesson_11.backward import pair_case
from labkit.checks.lesson_11.blockwise import block_case
from labkit.checks.lesson_11.divided_gpt import gpt_case
from labkit.checks.lesson_11.heads import heads_case
from labkit.checks.lesson_11.losses import loss_case
from labkit.checks.lesson_11.merging import merge_case
from labkit.checks.lesson_11.ring import ring_case
from labkit.checks.lesson_11.sent import asked, in_both_directions
from labkit.checks.lesson_11.tokens import cut_case
from labkit.checks.shared.formula import Row, refusal_case, values_case
from labkit.theory.context import ring_sent, ulysses_sent
from labkit.theory.models import llama

PAIR_AND_ONE = [[0, 2], [1]]


def _merge_cases(seed: int) -> list[Case]:
    draw = Random(f"11/merge/{seed}")
    s, d, first = draw.randint(4, 9), draw.randint(2, 5), draw.randint(1, 3)
    nobody = [draw.choice(("one", "both")), *(s - 1) * ["one"]]
    return [
        merge_case("unseen: parts of other sizes", "values", [1, 3, s, d], first, seed),
        merge_case("unseen: one head", "values", [s, d], first, seed, dtype="float32"),
        merge_case("unseen: large", "large", [1, 2, s, d], first, seed, scale=float(draw.randint(500, 900))),
        merge_case(
            "unseen: far below 0", "large", [1, s, d], first, seed, below=float(draw.randint(800, 999))
        ),
        merge_case("unseen: nothing seen", "empty", [2, 1, s, d], first, seed, dtype="float32"),
        merge_case("unseen: a part that all see", "empty", [3, s, d], first, seed, blind=["one"]),
        merge_case("unseen: a part that nobody sees", "empty", [2, s, d], first, seed, blind=nobody),
        merge_case("unseen: nothing seen at all", "empty", [s, d], first, seed, blind=s * ["both"]),
        merge_case("unseen: one query", "values", [2, s, d], first, seed, queries=1, dtype="float32"),
        merge_case("unseen: far behind", "values", [1, s, d], first, seed, behind=_behind(draw, s)),
        merge_case("unseen: zeros and an lse of 0", "values", [2, s, d], first, seed, **_like_nothing(draw)),
    ]


def _behind(draw: Random, rows: int) -> list[float]:
    """Of parts whose weights float64 can add and few tolerances see, in either order."""
    return [draw.choice((-1, 1)) * draw.uniform(12.0, 20.0) for _ in range(rows)]


def _like_nothing(draw: Random) -> dict[str, str]:
    """A part with an output of zeros, and one with an lse of 0, as sets of keys that were seen have them."""
    zeros, level = draw.sample(("one", "other"), 2)
    return {"zeros": zeros, "level": level}


def _block_cases(seed: int) -> list[Case]:
    draw = Random(f"11/blocks/{seed}")
    block, blocks = draw.randint(4, 6), draw.randint(2, 5)
    heads = draw.randint(1, 3)
    return [
        block_case("unseen: blocks", "values", [2, heads, block * blocks, 2], block, seed),
        block_case("unseen: one head", "values", [4 * block, 3], block, seed, dtype="float32"),
        block_case("unseen: large", "values", [heads, 3 * block, 4], block, seed, scale=500.0),
        block_case("unseen: many blocks", "values", [1, 1, 768, 3], 32, seed),
        block_case("unseen: ragged", "ragged", [1, heads, block * blocks + 1, 3], block, seed),
        block_case("unseen: blocks of one", "ragged", [2, 1, 5, 3], 1, seed),
        block_case("unseen: many blocks and one token", "ragged", [1, 1, 12 * block + 1, 3], block, seed),
        block_case("unseen: two blocks", "values", [1, heads, 2 * block, 2], block, seed, blank=block),
        block_case("unseen: your own merge", "own-parts", [heads, 1, 3 * block, 3], block, seed),
    ]


def _pair_cases(seed: int) -> list[Case]:
    draw = Random(f"11/pairs/{seed}")
    rows, d, columns = draw.randint(2, 5), draw.randint(2, 6), draw.randint(1, 2)
    more = {"rows": rows, "columns": rows + columns}
    return [
        pair_case("unseen: before", "past", [1, 2, 4 * rows, d], rows - columns, seed, **more),
        pair_case("unseen: first, float32", "past", [2, 1, 2 * rows, d], 0, seed, rows=rows, dtype="float32"),
        pair_case("unseen: large", "past", [2, 1, 3 * rows, d], 0, seed, rows=rows, scale=500.0),
        pair_case("unseen: large, diagonal", "diagonal", [3, 3, 8, d], 4, seed, scale=600.0),
        pair_case("unseen: diagonal", "diagonal", [1, 3, 3 * rows, d], 2 * rows, seed, rows=rows, off=True),
    ]


def _cut_cases(seed: int) -> list[Case]:
    draw = Random(f"11/cut/{seed}")
    ranks, size = draw.randint(3, 7), draw.randint(1, 4)
    settings = [(2 * ranks * size, ranks), (4 * size, 2), (2 * size, 1), (16 * size, 8)]
    return [
        cut_case("unseen: positions", "cut", settings, seed),
        cut_case("unseen: chunks of one token", "cut", [(2 * ranks, ranks)], seed),
        cut_case("unseen: blocks", "blocks", settings, seed),
        cut_case("unseen: refused", "refused", [(2 * ranks * size + ranks, ranks)], seed),
        cut_case("unseen: a token more", "refused", [(2 * ranks * size + 1, ranks)], seed),
        cut_case("unseen: fewer tokens than chunks", "refused", [(ranks + 1, ranks)], seed),
        cut_case("unseen: refused alone", "refused", [(2 * size + 1, 1)], seed),
    ]


def _ring_cases(seed: int, fewest: int = 0) -> list[Case]:
    """fewest: dimensions before [c, d]; a forward that goes from head to head needs one, and has a rank with
    values of zeros.
    """
    draw = Random(f"11/ring/{seed}")
    size, d, heads = draw.randint(1, 3), draw.randint(2, 5), draw.randint(1, 3)
    before = draw.choice([[1, heads], [2, 1, heads]])
    more, blank = {"groups": PAIR_AND_ONE}, {"blank": [0]} if fewest else {}
    return [
        ring_case("unseen: five ranks", "values", 5, [1, heads, 10 * size, d], seed),
        ring_case("unseen: large", "values", 3, [heads, 12 * size, 4], seed, scale=500.0),
        ring_case(
            "unseen: two ranks, float32",
            "values",
            2,
            [2, heads, 4 * size, d],
            seed,
            dtype="float32",
            **blank,
        ),
        ring_case("unseen: a pair and one", "subgroup", 3, [*before, 4 * size, d], seed, **more),
        ring_case("unseen: alone", "alone", 1, [*[heads] * fewest, 2 * size, d], seed),
    ]


def _heads_cases(seed: int) -> list[Case]:
    draw = Random(f"11/heads/{seed}")
    size, d, groups = draw.randint(1, 4), draw.randint(2, 5), draw.randint(1, 2)
    more = {"dtype": "float32"}
    return [
        heads_case("unseen: three ranks", "values", 3, [1, 6 * groups, 3 * size, d], 6, seed),
        heads_case("unseen: two ranks, float32", "values", 2, [2, 4, 2 * size, d], 2, seed, **more),
        heads_case("unseen: float16", "low", 3, [1, 6, 3 * size, d], 3, seed, dtype="float16"),
        heads_case(
            "unseen: a pair and one", "subgroup", 3, [2, 4, 4 * size, d], 2, seed, groups=PAIR_AND_ONE
        ),
        heads_case("unseen: alone", "alone", 1, [2, 3, size, d], 3, seed),
        heads_case("unseen: one head of keys", "refused", 2, [1, 4, 2 * size, d], 1, seed),
        # more than there are ranks, some of which they have in common
        heads_case("unseen: six heads of keys", "refused", 4, [1, 12, 4 * size, d], 6, seed),
        heads_case("unseen: five heads", "refused", 3, [1, 5, 3 * size, d], 5, seed),
    ]


def _loss_cases(seed: int) -> list[Case]:
    draw = Random(f"11/loss/{seed}")
    c, vocabulary, without = draw.randint(3, 9), draw.randint(3, 9), draw.randrange(4)
    shape, ignore = [2, c, vocabulary], draw.randrange(vocabulary)
    crossed = [[0, 2], [1, 3]]
    return [
        loss_case("unseen: four ranks", "values", 4, shape, seed),
        loss_case("unseen: another number", "values", 2, shape, seed, ignore=ignore, dtype="float32"),
        loss_case("unseen: without targets", "without", 4, shape, seed, without=[without]),
        loss_case("unseen: nobody", "nobody", 3, shape, seed, without=[0, 1, 2], dtype="float32"),
        loss_case("unseen: bfloat16", "bfloat16", 3, [1, 200 + c, vocabulary], seed, dtype="bfloat16"),
        loss_case("unseen: float16", "bfloat16", 2, [1, 200 + c, vocabulary], seed, dtype="float16"),
        loss_case("unseen: other groups", "subgroup", 4, shape, seed, groups=crossed),
        loss_case("unseen: alone", "alone", 1, shape, seed, dtype="float32"),
    ]


def _bytes_row(draw: Random, way: str, ranks: int, backward: bool) -> Row:
    kv_heads = ranks * draw.randint(1, 4)
    heads, size, element = kv_heads * draw.randint(1, 6), 2 * draw.randint(8, 64), draw.choice([1, 2, 4])
    sequence = ranks * draw.randint(100, 10_000)
    config = llama(1, heads * size, heads, kv_heads, size)
    sent = (ring_sent if way == "ring" else ulysses_sent)(config, sequence, 1, ranks, element)
    shape = (sequence, heads, kv_heads, size)
    asking = asked(way, shape, ranks, backward=backward, element=element)
    return asking, sent.backward if backward else sent.forward


def _bytes_cases(seed: int) -> list[Case]:
    draw = Random(f"11/bytes/{seed}")
    kinds = {"ring": ("ring", False), "ring-backward": ("ring", True), "ulysses": ("ulysses", False)}
    cases = [
        values_case(kind, [_bytes_row(draw, way, draw.randint(2, 16), backward)], seed, ", unseen")
        for kind, (way, backward) in kinds.items()
    ]
    back = _bytes_row(draw, "ulysses", draw.randint(2, 16), True)
    alone = [_bytes_row(draw, way, 1, back) for way in ("ring", "ulysses") for back in (False, True)]
    few = (720, 24, draw.choice([2, 3, 4]), 16)
    refused = [
        asked("ulysses", few, 6),
        asked("ulysses", (700, 8, 8, 4), 8),
        asked("ring", (700, 8, 8, 4), 8),
        asked("Ring Attention", few, 2),
        asked("star", few, 1),
    ]
    return [
        *cases,
        values_case("ulysses", [back], seed, ", unseen backward"),
        values_case("alone", alone, seed, ", unseen"),
        refusal_case("refused", in_both_directions(refused), seed, ", unseen"),
    ]


def _gpt_cases(seed: int) -> list[Case]:
    draw = Random(f"11/gpt/{seed}")
    size, vocabulary, rows = draw.randint(1, 3), draw.randint(9, 14), draw.randint(1, 3)
    more = {"vocabulary": vocabulary, "rows": rows, "tied": draw.random() < 0.5}
    shallow = {"layers": 1, "dtype": "float32", "apart": True}
    return [
        gpt_case(
            "unseen: cp 4",
            "values",
            1,
            4,
            1,
            seed,
            sequence=8 * size,
            longest=8 * size + 3,
            zeroed=True,
            **more,
        ),
        gpt_case(
            "unseen: dp 3, apart", "values", 3, 2, 1, seed, sequence=12, evaluated=True, **shallow, **more
        ),
        gpt_case("unseen: cp 3, tp 2", "tensor", 1, 3, 2, seed, sequence=6 * size, longest=18, **more),
        gpt_case("unseen: dp 2, cp 2, tp 2", "tensor", 2, 2, 2, seed, sequence=4 * size, layers=1, **more),
        gpt_case("unseen: without targets", "without", 1, 3, 1, seed, sequence=6 * size, longest=18, **more),
        gpt_case("unseen: all your own", "own-parts", 1, 2, 1, seed, sequence=4 * size, **more),
    ]


CASES: dict[str, Callable[[int], list[Case]]] = {
    "11.merge-partials": _merge_cases,
    "11.blockwise-attention": _block_cases,
    "11.block-backward": _pair_cases,
    "11.own-tokens": _cut_cases,
    "11.ring-forward": partial(_ring_cases, fewest=1),
    "11.ring-attention": _ring_cases,
    "11.ulysses": _heads_cases,
    "11.context-bytes": _bytes_cases,
    "11.sharded-loss": _loss_cases,
    "11.context-parallel-gpt": _gpt_cases,
}
