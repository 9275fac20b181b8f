"""Shapes of models, drawn at random: of the two families, and between them."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.theory.models import ModelConfig, gpt, llama


def drawn_gpt(random: Random, **fields: Any) -> ModelConfig:
    """Of GPT-2's family. fields: to be as given."""
    heads, size = random.choice([6, 8, 12, 20]), random.choice([32, 64, 80])
    return gpt(
        random.randint(3, 60),
        heads * size,
        heads,
        vocabulary=random.randint(900, 60_000),
        max_sequence=random.choice([500, 1024, 2048]),
    ).but(**fields)


def drawn_llama(random: Random, **fields: Any) -> ModelConfig:
    """Of Llama's family. fields: to be as given."""
    kv_heads, groups, size = random.choice([2, 4, 8]), random.choice([2, 3, 4]), random.choice([48, 64, 128])
    hidden = kv_heads * groups * size
    return llama(
        random.randint(3, 60),
        hidden,
        kv_heads * groups,
        kv_heads,
        ffn=random.randint(2 * hidden, 4 * hidden),
        vocabulary=random.randint(900, 140_000),
    ).but(**fields)


def drawn_groups(random: Random) -> list[ModelConfig]:
    """Of Llama's family, with other numbers of key-value heads than usual: odd ones, more than eight, half of
    the heads, many heads to one, none shared.
    """
    odd = [(random.choice([3, 5, 7]), random.choice([2, 5])), (random.choice([9, 11, 13, 15]), 2)]
    many = [(random.choice([6, 10, 12, 14]), random.choice([3, 6])), (3, random.randint(9, 20))]
    return [_grouped(random, *drawn) for drawn in (*odd, *many, (random.choice([5, 10, 14]), 1))]


def _grouped(random: Random, kv_heads: int, groups: int) -> ModelConfig:
    hidden = kv_heads * groups * 2 * random.randint(20, 70)
    return llama(random.randint(3, 30), hidden, kv_heads * groups, kv_heads, ffn=3 * hidden, vocabulary=9000)


def in_between(random: Random) -> list[ModelConfig]:
    """Between the families. Some differ from the one before in fields alone that have a default."""
    base = drawn_gpt(random)
    odd_heads = base.but(head_size=72)
    return [
        base,
        base.but(tied_embeddings=False),
        base.but(biases="none", positions="rotary"),
        base.but(gated_mlp=True, ffn=1111),
        base.but(ffn=1111),
        odd_heads.but(num_kv_heads=odd_heads.num_heads // 2),
        drawn_llama(random, num_kv_heads=1, num_layers=1),
        drawn_llama(random, gated_mlp=False),
        drawn_llama(random, tied_embeddings=True),
        drawn_llama(random, biases="qkv"),
        drawn_llama(random, norm="layernorm", positions="learned"),
    ]
