"""The situations of lesson 07: each maker makes cases of one exercise, and says what they show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.checks.case import Case

PAIRS = [[0, 3], [1, 2]]
NUMBERS = ("forward-values", "input-gradients", "parameter-gradients", "trained-weights")

_ATTENTION = {
    "values": (*NUMBERS, "communication", "stored-shards"),
    "grouped": ("grouped-query",),
    "round-trip": ("round-trip",),
    "layout": ("any-layout",),
    "refused": ("refusals",),
    "subgroup": ("subgroup",),
}
_EMBEDDING = {
    "values": ("forward-values", "parameter-gradients", "trained-weights", "communication", "stored-shards"),
    "uneven": ("uneven-vocabulary",),
    "round-trip": ("uneven-vocabulary",),
    "wrong-ids": ("wrong-ids",),
    "subgroup": ("subgroup",),
}
_LOSS = {
    "values": ("loss-value", "gradients", "scalars-only"),
    "uneven": ("uneven-vocabulary",),
    "ignored": ("ignore-index",),
    "smoothed": ("label-smoothing",),
    "large": ("large-logits",),
    "owner": ("one-owner",),
    "bfloat16": ("low-precision",),
    "wrong-targets": ("wrong-targets",),
    "subgroup": ("subgroup",),
}
_STREAMS = {
    "values": ("shared-stream", "own-streams", "streams-go-on", "others-unmoved"),
    "subgroup": ("subgroup",),
}
_INITIAL = {
    "values": ("own-blocks", "whole-alike", "spread"),
    "uneven": ("uneven-sizes",),
    "subgroup": ("subgroup",),
}
_PAIR = {
    "values": ("forward-values", "input-gradients", "communication", "callers-tensors"),
    "layout": ("any-layout",),
    "uneven": ("uneven-sequence",),
    "subgroup": ("subgroup",),
}
_PRODUCTS = {
    "values": ("forward-values", "input-gradients", "parameter-gradients", "kept-slices", "communication"),
    "bare": ("no-bias",),
    "subgroup": ("subgroup",),
}
_BLOCK = {
    "values": (*NUMBERS, "communication", "stored-shards"),
    "sequence": ("sequence-parallel", "sequence-communication"),
    "kept": ("kept-activations",),
    "dropout": ("dropout",),
    "subgroup": ("subgroup",),
    "own-parts": ("own-parts",),
}
_GPT = {
    "values": ("losses", "parameter-gradients", "trained-weights", "stored-shards", "communication"),
    "untied": ("untied",),
    "uneven-vocabulary": ("uneven-vocabulary",),
    "sequence-parallel": ("sequence-parallel",),
    "round-trip": ("round-trip",),
    "refused": ("refusals",),
    "dropout": ("dropout",),
    "own-parts": ("own-parts",),
}
_CLIP = {
    "values": ("total-norm", "scaled-gradients", "communication"),
    "small": ("small-norms",),
    "missing": ("missing-gradients",),
    "none-cut": ("missing-gradients",),
    "low": ("low-precision",),
    "subgroup": ("subgroup",),
}


def _maker(shown: dict[str, tuple[str, ...]], **usual: Any) -> Callable[..., Case]:
    def make(name: str, kind: str, ranks: int, seed: int, **params: Any) -> Case:
        everything = {"kind": kind, **usual, **params}
        own_parts = kind == "own-parts"
        return Case(name, ranks, everything, seed, own_parts=own_parts, properties=shown[kind])

    return make


attention_case = _maker(_ATTENTION, batch=2, sequence=5, hidden=12, heads=4)
embedding_case = _maker(_EMBEDDING, batch=2, sequence=5, hidden=3, vocabulary=12)
loss_case = _maker(_LOSS, batch=2, sequence=5, vocabulary=12)
streams_case = _maker(_STREAMS, stream_seed=3)
initial_case = _maker(_INITIAL, shape=[256, 384])
products_case = _maker(_PRODUCTS, batch=2, sequence=8, hidden=5, inner=12, out=3)
block_case = _maker(_BLOCK, batch=2, sequence=8, hidden=12, heads=4, ffn=20)
gpt_case = _maker(_GPT, batch=2, sequence=8, hidden=12, heads=4, ffn=20, layers=1, vocabulary=24)
clip_case = _maker(_CLIP, max_norm=2.0)


def pair_case(name: str, kind: str, ranks: int, seed: int, shape: Sequence[int], **params: Any) -> Case:
    """A case of the sequence pair; shape: of each rank's slice."""
    return Case(name, ranks, {"kind": kind, "shape": list(shape), **params}, seed, _PAIR[kind])


def attention_cases(seed: int) -> list[Case]:
    return [
        attention_case("4 heads of 5", "values", 2, seed, head_size=5),
        attention_case("grouped-query, 2 key-value heads", "grouped", 2, seed, kv_heads=2),
        attention_case(
            "other head size, no output bias", "grouped", 2, seed, kv_heads=2, head_size=5, biases="qkv"
        ),
        attention_case("views", "layout", 2, seed),
        attention_case("back to one", "round-trip", 2, seed, kv_heads=2),
        attention_case("8 heads", "values", 4, seed, heads=8, hidden=16),
        attention_case("grouped-query, 8 heads for 4", "grouped", 4, seed, heads=8, kv_heads=4, hidden=16),
        attention_case("6 heads", "refused", 4, seed, heads=6, names=[6, 4]),
        attention_case("2 key-value heads", "refused", 4, seed, heads=8, hidden=16, kv_heads=2, names=[2, 4]),
        attention_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


def embedding_cases(seed: int) -> list[Case]:
    return [
        embedding_case("12 tokens", "values", 2, seed),
        embedding_case("11 tokens", "uneven", 2, seed, vocabulary=11),
        embedding_case("11 tokens, back to one", "round-trip", 2, seed, vocabulary=11),
        embedding_case("ids outside", "wrong-ids", 2, seed, vocabulary=11),
        embedding_case("12 tokens on more ranks", "values", 4, seed, sequence=7),
        embedding_case("5 tokens: a rank without any", "uneven", 4, seed, vocabulary=5),
        embedding_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


def loss_cases(seed: int) -> list[Case]:
    return [
        loss_case("12 tokens", "values", 2, seed, times=-1.5),
        loss_case("11 tokens", "uneven", 2, seed, vocabulary=11),
        loss_case("some ignored", "ignored", 2, seed),
        loss_case("another ignore_index", "ignored", 2, seed, ignore_index=3),
        loss_case("smoothed", "smoothed", 2, seed, label_smoothing=0.2),
        loss_case("large logits", "large", 2, seed, scale=900.0),
        loss_case("bfloat16", "bfloat16", 2, seed, dtype="bfloat16"),
        loss_case("targets outside", "wrong-targets", 2, seed, vocabulary=11),
        loss_case("24 tokens", "values", 4, seed, vocabulary=24, times=2.0),
        loss_case("all targets on rank 2", "owner", 4, seed, owner=2),
        loss_case("5 tokens: a rank without any", "uneven", 4, seed, vocabulary=5),
        loss_case("smoothed and padded", "smoothed", 4, seed, vocabulary=10, label_smoothing=0.1),
        loss_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


def streams_cases(seed: int) -> list[Case]:
    return [
        streams_case("two ranks", "values", 2, seed),
        streams_case("four ranks", "values", 4, seed),
        streams_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


def initial_cases(seed: int) -> list[Case]:
    return [
        initial_case("two ranks", "values", 2, seed),
        initial_case("four ranks", "values", 4, seed),
        initial_case("254 rows", "uneven", 4, seed, shape=[254, 384]),
        initial_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


def pair_cases(seed: int) -> list[Case]:
    return [
        pair_case("two ranks", "values", 2, seed, [2, 3, 5]),
        pair_case("views", "layout", 2, seed, [2, 3, 5]),
        pair_case("5 tokens", "uneven", 2, seed, [2, 3, 5]),
        pair_case("four ranks", "values", 4, seed, [3, 2, 4]),
        pair_case("two groups of two", "subgroup", 4, seed, [2, 3, 5], groups=PAIRS),
    ]


def products_cases(seed: int) -> list[Case]:
    return [
        products_case("two ranks", "values", 2, seed),
        products_case("without bias", "bare", 2, seed, bias=False),
        products_case("four ranks", "values", 4, seed, batch=3),
        products_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


def block_cases(seed: int) -> list[Case]:
    return [
        block_case("two ranks", "values", 2, seed),
        block_case("two ranks, tokens divided", "sequence", 2, seed, sequence_parallel=True),
        block_case("what is kept", "kept", 2, seed, hidden=32, sequence=24),
        block_case("dropout", "dropout", 2, seed, dropout=0.5, sequence=16),
        block_case("all parts your own", "own-parts", 2, seed, sequence_parallel=True),
        block_case("four ranks", "values", 4, seed, hidden=16, heads=8, kv_heads=4),
        block_case("four ranks, tokens divided", "sequence", 4, seed, sequence_parallel=True),
        block_case(
            "what is kept, tokens divided", "kept", 4, seed, hidden=32, sequence=24, sequence_parallel=True
        ),
        block_case(
            "dropout, tokens divided", "dropout", 4, seed, dropout=0.5, sequence=40, sequence_parallel=True
        ),
        block_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


def gpt_cases(seed: int) -> list[Case]:
    return [
        gpt_case("two ranks", "values", 2, seed, layers=2),
        gpt_case("untied", "untied", 2, seed, tied=False),
        gpt_case("23 tokens", "uneven-vocabulary", 2, seed, vocabulary=23),
        gpt_case("back to one", "round-trip", 2, seed, vocabulary=23, tied=False, layers=2),
        gpt_case("dropout", "dropout", 2, seed, dropout=0.3),
        gpt_case("all parts your own", "own-parts", 2, seed, vocabulary=23, sequence_parallel=True),
        gpt_case("four ranks", "values", 4, seed),
        gpt_case("22 tokens, untied", "uneven-vocabulary", 4, seed, vocabulary=22, tied=False),
        gpt_case("tokens divided", "sequence-parallel", 4, seed, vocabulary=22, sequence_parallel=True),
        gpt_case("back to one, tied", "round-trip", 4, seed, vocabulary=22),
        gpt_case("6 tokens a sequence", "refused", 4, seed, sequence=6, sequence_parallel=True, names=[6, 4]),
    ]


def clip_cases(seed: int) -> list[Case]:
    return [
        clip_case("two ranks", "values", 2, seed),
        clip_case("a small norm", "small", 2, seed, scale=0.01),
        clip_case("without gradient", "missing", 2, seed),
        clip_case("nothing cut", "none-cut", 2, seed),
        clip_case("bfloat16", "low", 2, seed, dtype="bfloat16"),
        clip_case("four ranks", "values", 4, seed, max_norm=0.5),
        clip_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]
