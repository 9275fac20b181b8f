"""Unseen cases of lesson 07: other sizes and vocabularies, three ranks, other groups, a lone rank."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.lesson_07.attention import MODES_OF as ATTENTION_MODES
from labkit.checks.lesson_07.attention import attention_case
from labkit.checks.lesson_07.block import MODES_OF as BLOCK_MODES
from labkit.checks.lesson_07.block import block_case
from labkit.checks.lesson_07.clipping import clip_case
from labkit.checks.lesson_07.embedding import embedding_case
from labkit.checks.lesson_07.initial import initial_case
from labkit.checks.lesson_07.kept_bytes import bytes_cases
from labkit.checks.lesson_07.loss import FAR_BELOW, loss_case
from labkit.checks.lesson_07.pair import pair_case
from labkit.checks.lesson_07.products import LARGE, WEIGHTS, products_case
from labkit.checks.lesson_07.streams import streams_case
from labkit.checks.lesson_07.whole_model import MODES_OF as GPT_MODES
from labkit.checks.lesson_07.whole_model import gpt_case

PAIR_AND_ONE = [[0, 2], [1]]
NEIGHBOURS = [[2, 3], [0, 1]]
EVERY_OTHER = [[0, 2], [1, 3]]
ALL_BUT_ONE = [*WEIGHTS, "up_bias"]
OTHERS = ["up_bias", "down_weight"]  # than those that the visible case freezes


def _mode(draw: Random) -> dict[str, str | float]:
    """Whether something is dropped, and in which dtype, in cases "modes"."""
    return {"dropout": draw.choice([0.0, 0.1, 0.4]), "dtype": draw.choice(["float32", "float64"])}


def _attention_cases(seed: int) -> list[Case]:
    draw = Random(f"07/attention/{seed}")
    d, batch, sequence = draw.randint(2, 5), draw.randint(1, 3), draw.randint(3, 7)
    shape = {"batch": batch, "sequence": sequence, "head_size": d, "hidden": 3 * draw.randint(2, 5)}
    return [
        attention_case("unseen: three ranks", "values", 3, seed, **shape, heads=6),
        attention_case("unseen: groups of three", "grouped", 3, seed, **shape, heads=9, kv_heads=3),
        attention_case("unseen: no biases", "grouped", 2, seed, **shape, heads=4, kv_heads=2, biases="none"),
        attention_case("unseen: float32", "values", 2, seed, **shape, heads=2, dtype="float32"),
        attention_case("unseen: back", "round-trip", 3, seed, **shape, heads=6, kv_heads=3),
        attention_case("unseen: back, no biases", "round-trip", 2, seed, **shape, heads=2, biases="none"),
        attention_case("unseen: refused", "refused", 3, seed, heads=4, names=[4, 3]),
        attention_case("unseen: one key head", "refused", 2, seed, heads=4, kv_heads=1, names=[1, 2]),
        attention_case("unseen: pair", "subgroup", 3, seed, **shape, heads=4, groups=PAIR_AND_ONE),
        attention_case("unseen: alone", "values", 1, seed, **shape, heads=2),
        attention_case("unseen: alone, other products", "products", 1, seed, **shape, heads=2),
        attention_case("unseen: in every mode", "modes", 4, seed, **ATTENTION_MODES, **_mode(draw)),
    ]


def _embedding_cases(seed: int) -> list[Case]:
    draw = Random(f"07/embedding/{seed}")
    rows, hidden = draw.randint(2, 6), draw.randint(2, 7)
    return [
        embedding_case("unseen: three ranks", "values", 3, seed, vocabulary=3 * rows, hidden=hidden),
        embedding_case("unseen: one short", "uneven", 3, seed, vocabulary=3 * rows - 1, hidden=hidden),
        embedding_case("unseen: one more", "uneven", 4, seed, vocabulary=4 * rows + 1, hidden=hidden),
        embedding_case("unseen: back", "round-trip", 4, seed, vocabulary=4 * rows + 1, hidden=hidden),
        embedding_case("unseen: outside", "wrong-ids", 3, seed, vocabulary=3 * rows - 1, hidden=hidden),
        embedding_case("unseen: pair", "subgroup", 3, seed, vocabulary=2 * rows, groups=PAIR_AND_ONE),
        embedding_case(
            "unseen: one id", "values", 2, seed, vocabulary=2 * rows, batch=1, sequence=1, dtype="float16"
        ),
        embedding_case("unseen: alone", "values", 1, seed, vocabulary=rows, hidden=hidden),
        embedding_case(
            "unseen: alone, completed otherwise", "leave", 1, seed, vocabulary=rows, hidden=hidden
        ),
    ]


def _loss_cases(seed: int) -> list[Case]:
    draw = Random(f"07/loss/{seed}")
    rows, shape = draw.randint(2, 6), {"batch": draw.randint(1, 3), "sequence": draw.randint(3, 8)}
    smooth = draw.choice([0.05, 0.3])
    return [
        *_loss_of_sizes(seed, rows, shape),
        *_loss_of_large_numbers(seed, rows, shape, smooth),
        *_loss_beyond_the_vocabulary(seed, rows, shape),
        *_loss_alone(seed, rows, shape),
    ]


def _loss_of_sizes(seed: int, rows: int, shape: dict[str, int]) -> list[Case]:
    batch_of_4 = shape | {"batch": 4}
    return [
        loss_case("unseen: three ranks", "values", 3, seed, **shape, vocabulary=3 * rows, times=3.0),
        loss_case("unseen: float32", "values", 2, seed, **batch_of_4, vocabulary=2 * rows, dtype="float32"),
        loss_case("unseen: a token a sequence", "values", 2, seed, batch=4, sequence=1, vocabulary=2 * rows),
        loss_case("unseen: one short", "uneven", 3, seed, **shape, vocabulary=3 * rows - 1, dtype="float32"),
        loss_case("unseen: one more", "uneven", 4, seed, **shape, vocabulary=4 * rows + 1),
        loss_case("unseen: first rank", "owner", 3, seed, **shape, vocabulary=3 * rows, owner=0),
        loss_case("unseen: last rank", "owner", 3, seed, **shape, vocabulary=3 * rows - 1, owner=2),
        loss_case("unseen: the first id ignored", "ignored", 2, seed, vocabulary=2 * rows, ignore_index=0),
        loss_case("unseen: ignored", "ignored", 3, seed, **shape, vocabulary=3 * rows, ignore_index=-1),
        loss_case("unseen: pair", "subgroup", 3, seed, **shape, vocabulary=2 * rows, groups=PAIR_AND_ONE),
    ]


def _loss_of_large_numbers(seed: int, rows: int, shape: dict[str, int], smooth: float) -> list[Case]:
    """Large, far below zero, smoothed, and in 16 bits."""
    short = shape | {"vocabulary": 3 * rows - 1}
    even = shape | {"vocabulary": 3 * rows}
    half = {"dtype": "bfloat16", "shift": 100.0, "label_smoothing": 0.5}
    return [
        loss_case("unseen: large", "large", 4, seed, **shape, vocabulary=4 * rows, scale=2000.0),
        loss_case("unseen: far below, a rank without any", "uneven", 4, seed, vocabulary=5, shift=FAR_BELOW),
        loss_case("unseen: smoothed", "smoothed", 3, seed, **short, label_smoothing=smooth, beyond="nan"),
        loss_case("unseen: large, smoothed", "smoothed", 3, seed, **even, scale=900.0, label_smoothing=0.1),
        loss_case("unseen: float16", "bfloat16", 3, seed, **even, dtype="float16"),
        loss_case("unseen: bfloat16, smoothed", "bfloat16", 3, seed, **even, **half),
    ]


def _loss_beyond_the_vocabulary(seed: int, rows: int, shape: dict[str, int]) -> list[Case]:
    short, pair = shape | {"vocabulary": 3 * rows - 1}, shape | {"vocabulary": 2 * rows - 1}
    return [
        loss_case("unseen: padding that is nan", "uneven", 3, seed, **short, beyond="nan"),
        loss_case("unseen: infinite padding", "uneven", 2, seed, **pair, beyond="inf"),
        loss_case("unseen: outside", "wrong-targets", 3, seed, **short),
    ]


def _loss_alone(seed: int, rows: int, shape: dict[str, int]) -> list[Case]:
    shape = shape | {"vocabulary": rows}
    return [
        loss_case("unseen: alone", "values", 1, seed, **shape),
        loss_case("unseen: alone, bfloat16", "bfloat16", 1, seed, **shape, dtype="bfloat16"),
        loss_case("unseen: alone, outside", "wrong-targets", 1, seed, **shape),
    ]


def _streams_cases(seed: int) -> list[Case]:
    number = Random(f"07/streams/{seed}").randint(10, 1000)
    return [
        streams_case("unseen: three ranks", "values", 3, seed, stream_seed=number),
        streams_case("unseen: seed 0", "values", 2, seed, stream_seed=0),
        streams_case("unseen: pair", "subgroup", 3, seed, stream_seed=number, groups=PAIR_AND_ONE),
    ]


def _initial_cases(seed: int) -> list[Case]:
    draw = Random(f"07/initial/{seed}")
    shape = [6 * draw.randint(40, 60), 6 * draw.randint(60, 80)]
    return [
        initial_case("unseen: three ranks", "values", 3, seed, shape=shape[::-1]),
        initial_case(
            "unseen: one more, neighbours",
            "uneven",
            4,
            seed,
            shape=[shape[0] + 1, shape[1]],
            groups=NEIGHBOURS,
        ),
        initial_case("unseen: one column more", "uneven", 3, seed, shape=[shape[0], shape[1] + 1]),
        initial_case("unseen: pair", "subgroup", 3, seed, shape=shape, groups=PAIR_AND_ONE),
        initial_case("unseen: alone", "values", 1, seed, shape=shape),
        initial_case("unseen: in double precision", "values", 2, seed, shape=shape, default="float64"),
        initial_case("unseen: your own streams", "own-parts", 3, seed, shape=shape),
    ]


def _pair_cases(seed: int) -> list[Case]:
    draw = Random(f"07/pair/{seed}")
    shape = [draw.randint(1, 3), draw.randint(1, 4), draw.randint(2, 5)]
    return [
        pair_case("unseen: three ranks", "values", 3, seed, [1, *shape[1:]]),
        pair_case("unseen: four dimensions", "values", 2, seed, [*shape, 2]),
        pair_case("unseen: views", "layout", 3, seed, [2, *shape[1:]]),
        pair_case("unseen: views of four dimensions", "layout", 2, seed, [2, *shape[1:], 3]),
        pair_case("unseen: uneven", "uneven", 3, seed, [2, 2 * shape[1] + 1, 3]),  # two ranks could divide it
        pair_case("unseen: uneven, neighbours", "uneven", 4, seed, shape, groups=NEIGHBOURS),
        pair_case("unseen: pairs", "subgroup", 4, seed, shape, groups=EVERY_OTHER),
        pair_case("unseen: neighbours", "subgroup", 4, seed, shape, groups=NEIGHBOURS),
        pair_case("unseen: alone", "values", 1, seed, shape),
        pair_case("unseen: kept", "kept", 2, seed, [1], dtype=draw.choice(["float32", "bfloat16"])),
    ]


def _products_cases(seed: int) -> list[Case]:
    draw = Random(f"07/products/{seed}")
    shape = {"batch": draw.randint(1, 3), "hidden": draw.randint(2, 7), "out": draw.randint(2, 7)}
    return [
        products_case("unseen: three ranks", "values", 3, seed, **shape | {"batch": 1}, sequence=6),
        products_case("unseen: without bias", "bare", 3, seed, **shape, sequence=9, bias=False),
        products_case("unseen: first layer", "first-layer", 3, seed, **shape, sequence=6),
        products_case("unseen: biases alone are trained", "first-layer", 2, seed, **shape, frozen=WEIGHTS),
        products_case(
            "unseen: one bias alone is trained", "first-layer", 2, seed, **shape, frozen=ALL_BUT_ONE
        ),
        products_case("unseen: others frozen", "frozen", 3, seed, **shape, sequence=6, frozen=OTHERS),
        products_case("unseen: zeros on a rank", "still", 3, seed, **shape, sequence=6, zeros_on=1),
        products_case("unseen: kept, without bias", "kept", 2, seed, **LARGE, bias=False),
        products_case("unseen: kept of a first layer", "kept", 2, seed, **LARGE, first_layer=True),
        products_case("unseen: neighbours", "subgroup", 4, seed, **shape, groups=NEIGHBOURS),
        products_case("unseen: alone", "values", 1, seed, **shape),
        products_case("unseen: kept, in fewer bits", "kept", 2, seed, **_narrower(draw)),
    ]


def _narrower(draw: Random) -> dict[str, Any]:
    """As large as `LARGE` in bytes, in another dtype."""
    dtype, times = draw.choice([("float32", 2), ("bfloat16", 4)])
    return {**LARGE, "batch": times * LARGE["batch"], "dtype": dtype}


def _block_cases(seed: int) -> list[Case]:
    draw = Random(f"07/block/{seed}")
    shape = {"hidden": 6 * draw.randint(2, 3), "heads": 6, "ffn": 3 * draw.randint(4, 8), "batch": 2}
    return [
        block_case("unseen: three ranks", "values", 3, seed, **shape, kv_heads=3, sequence=7),
        block_case(
            "unseen: three ranks, divided", "sequence", 3, seed, **shape, sequence=9, sequence_parallel=True
        ),
        block_case("unseen: kept", "kept", 4, seed, batch=3, hidden=96, sequence=64),
        block_case("unseen: kept, divided", "kept", 2, seed, hidden=144, sequence=64, sequence_parallel=True),
        block_case(
            "unseen: kept, in 16 bits", "kept", 2, seed, batch=8, hidden=192, sequence=64, dtype="bfloat16"
        ),
        block_case("unseen: dropout", "dropout", 4, seed, heads=8, hidden=24, dropout=0.5, sequence=16),
        block_case("unseen: own parts", "own-parts", 3, seed, **shape, sequence=7),
        block_case("unseen: pair", "subgroup", 3, seed, groups=PAIR_AND_ONE),
        block_case("unseen: alone", "values", 1, seed),
        block_case("unseen: views", "layout", 2, seed, **shape, sequence_parallel=True),
        block_case("unseen: in every mode", "modes", 4, seed, **BLOCK_MODES, **_mode(draw)),
        block_case(
            "unseen: in every mode, divided",
            "modes",
            4,
            seed,
            **BLOCK_MODES,
            **_mode(draw),
            sequence_parallel=True,
        ),
    ]


def _gpt_cases(seed: int) -> list[Case]:
    draw = Random(f"07/gpt/{seed}")
    rows, shape = draw.randint(4, 9), {"hidden": 12, "heads": 6, "ffn": 18, "sequence": 6}
    return [
        gpt_case("unseen: three ranks", "values", 3, seed, **shape, vocabulary=3 * rows),
        gpt_case(
            "unseen: untied, begun alike",
            "untied",
            3,
            seed,
            **shape,
            vocabulary=3 * rows,
            tied=False,
            head_as_table=True,
        ),
        gpt_case("unseen: one short", "uneven-vocabulary", 3, seed, **shape, vocabulary=3 * rows - 1),
        gpt_case(
            "unseen: divided, untied",
            "sequence-parallel",
            3,
            seed,
            **shape,
            tied=False,
            sequence_parallel=True,
        ),
        gpt_case(
            "unseen: back", "round-trip", 3, seed, **shape, vocabulary=3 * rows - 2, sequence_parallel=True
        ),
        gpt_case(
            "unseen: divided, shorter than the longest",
            "sequence-parallel",
            4,
            seed,
            max_sequence=11,
            sequence_parallel=True,
        ),
        gpt_case("unseen: dropout", "dropout", 3, seed, **shape, dropout=0.2),
        gpt_case("unseen: alone", "values", 1, seed, **shape),
        gpt_case("unseen: in every mode", "modes", 4, seed, **GPT_MODES, **_mode(draw)),
        gpt_case(
            "unseen: in every mode, divided",
            "modes",
            4,
            seed,
            **GPT_MODES,
            **_mode(draw),
            sequence_parallel=True,
        ),
    ]


def _bytes_cases(seed: int) -> list[Case]:
    draw = Random(f"07/bytes/{seed}")
    shapes = []
    for t in (2, 8, 16, 32, 64, draw.randint(3, 100)):
        a = t * draw.randint(1, 6)
        s = draw.choice([draw.randint(10, 300), draw.randint(1000, 16_384)])
        shape = {"s": 8 * s, "b": draw.randint(1, 8), "h": a * draw.randint(16, 128)}
        shapes.append({**shape, "a": a, "t": t})
    t = draw.randint(65, 512)  # all is large
    a, s, b = t * draw.randint(1, 4), 1024 * draw.randint(32, 512), draw.randint(16, 256)
    shapes.append({"s": s, "b": b, "h": a * draw.choice([64, 128, 256]), "a": a, "t": t})
    return bytes_cases(seed, shapes, ", unseen")


def _clip_cases(seed: int) -> list[Case]:
    most = Random(f"07/clip/{seed}").choice([0.1, 1.5, 4.0])
    return [
        clip_case("unseen: other bound", "values", 4, seed, max_norm=most),
        clip_case("unseen: hardly above", "values", 2, seed, max_norm=most, above=1.004),
        clip_case("unseen: small", "small", 4, seed, scale=0.02),
        clip_case("unseen: missing", "missing", 4, seed, max_norm=most),
        clip_case(
            "unseen: squares beyond float16", "low", 2, seed, dtype="float16", scale=300.0, max_norm=1e3
        ),
        clip_case("unseen: neighbours", "subgroup", 4, seed, groups=NEIGHBOURS),
        clip_case("unseen: every other rank", "subgroup", 4, seed, groups=EVERY_OTHER),
        clip_case("unseen: alone", "values", 1, seed, max_norm=most),
    ]


CASES: dict[str, Callable[[int], list[Case]]] = {
    "07.tensor-parallel-attention": _attention_cases,
    "07.vocab-parallel-embedding": _embedding_cases,
    "07.vocab-parallel-cross-entropy": _loss_cases,
    "07.random-streams": _streams_cases,
    "07.initial-weights": _initial_cases,
    "07.sequence-parallel-pair": _pair_cases,
    "07.sequence-parallel-linear": _products_cases,
    "07.tensor-parallel-block": _block_cases,
    "07.activation-bytes": _bytes_cases,
    "07.tensor-parallel-gpt": _gpt_cases,
    "07.clip-grad-norm": _clip_cases,
}
