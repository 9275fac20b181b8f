"""Calls drawn at random for the exercises about memory, one generator an exercise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from autograder.lessons.lesson_01.calls import WHOLE, Call
from autograder.lessons.lesson_01.shapes import drawn_gpt, drawn_groups, drawn_llama, in_between
from labkit.theory.hardware import GPUS
from labkit.theory.models import ModelConfig, gpt, llama, preset

UNKNOWN_RECIPES = (  # each nearly the name of one, or the beginning, or more than one
    "",
    "adamw",
    "lion-mixed",
    "AdamW-mixed",
    "adamw_mixed",
    " adamw-mixed",
    "adamw-mixed-fp8",
    "sgd-momentum",
)


def count_calls(random: Random) -> Iterable[Call]:
    """For 01.count-parameters."""
    count = partial(Call, function="count_parameters", tolerance=WHOLE)
    for shape in (preset("GPT-2 124M"), preset("GPT-2 1.5B"), drawn_gpt(random), drawn_gpt(random)):
        yield count("gpt", arguments={"config": shape})
    for shape in (preset("Llama 3 8B"), preset("Llama 3 70B"), drawn_llama(random), drawn_llama(random)):
        yield count("llama", arguments={"config": shape})
    for shape in in_between(random):
        yield count("in-between", arguments={"config": shape})
    # Its last digits are more than a float has room for
    wide = gpt(random.randint(3, 60), 12 * 11_184_811, 12, ffn=2**27 - 1)
    yield count("in-between", arguments={"config": wide})
    for shape in drawn_groups(random):
        yield count("llama", arguments={"config": shape})
    grouped = drawn_groups(random)[0]
    yield count("in-between", arguments={"config": grouped.but(head_size=grouped.head_size + 3)})


def inference_calls(random: Random) -> Iterable[Call]:
    """For 01.inference-bytes."""
    for bits in (16, 8, 4):
        num_params = random.randrange(10**9, 10**11)
        overhead = random.choice([1.2, 1.0])
        arguments = {"num_params": num_params, "bits": bits, "overhead": overhead}
        yield Call("weights", "inference_bytes", arguments)
    for bits, overhead in ((4, 1.0), (4, 1.5), (32, 0.75), (6, 1.0)):  # of few, half a byte counts
        arguments = {"num_params": 2 * random.randint(50, 500) + 1, "bits": bits, "overhead": overhead}
        yield Call("weights", "inference_bytes", arguments)
    grouped = preset("Llama 3 70B")
    shapes = (
        grouped,
        grouped.but(num_kv_heads=1),
        drawn_llama(random),
        drawn_gpt(random),
        drawn_gpt(random, head_size=40),
    )
    for shape, bits in zip(shapes, (16, 16, 8, 4, random.choice([16, 8])), strict=True):
        sizes = {"sequence": random.randint(100, 10**6), "batch": random.randint(2, 9)}
        yield Call("kv-cache", "kv_cache_bytes", {"config": shape, **sizes, "bits": bits})
    yield Call("weights", "inference_bytes", {"num_params": random.randrange(10**9, 10**11)})
    yield Call(
        "kv-cache", "kv_cache_bytes", {"config": drawn_llama(random), "sequence": random.randint(100, 10**6)}
    )
    sizes = {"sequence": random.randint(1, 99), "batch": random.randint(10, 500)}
    for bits in random.sample((2, 3, 5, 6, 12, 32, 64), 2):
        yield Call("kv-cache", "kv_cache_bytes", {"config": drawn_gpt(random), **sizes, "bits": bits})
        params = random.randrange(10**4, 10**13)
        yield Call("weights", "inference_bytes", {"num_params": params, "bits": bits, "overhead": 1.1})
    for shape in drawn_groups(random):
        own_size = shape.but(head_size=shape.head_size + random.randint(0, 9))
        sizes = {"sequence": random.randint(1, 9), "batch": 3}
        yield Call("kv-cache", "kv_cache_bytes", {"config": own_size, **sizes, "bits": 4})
    odd = llama(3, 45, 3, 3, ffn=90).but(head_size=2 * random.randint(5, 40) + 1)  # no whole number of bytes
    sizes = {"sequence": 2 * random.randint(1, 9) + 1, "bits": random.choice([1, 3, 5])}
    yield Call("kv-cache", "kv_cache_bytes", {"config": odd, **sizes})


def state_calls(random: Random) -> Iterable[Call]:
    """For 01.training-state-bytes."""
    of = {
        "adamw-mixed": ["adamw-mixed", "adamw-no-master", "adamw-fp32"],
        "gradients": ["adamw-mixed-fp32-gradients", "adamw-mixed-both-gradients"],
        "sgd": ["sgd-mixed", "sgd-momentum-mixed"],
    }
    for name, recipes in of.items():
        for recipe in recipes:
            for most in (10**11, 10**17):  # numbers of the second size have digits that a float has not
                arguments = {"num_params": random.randrange(most // 10**3, most) | 1, "recipe": recipe}
                yield Call(name, "training_state_bytes", arguments, WHOLE)
    there_are = tuple(recipe for recipes in of.values() for recipe in recipes)
    for unknown in UNKNOWN_RECIPES:
        arguments = {"num_params": 1000, "recipe": unknown}
        yield Call("unknown-recipe", "training_state_bytes", arguments, may_raise=True, naming=there_are)
    arguments = {"num_params": random.randrange(10**8, 10**12), "recipe": "adamw-mixed"}
    yield Call("adamw-mixed", "training_state_bytes", arguments, WHOLE, twice=True)


def zero_calls(random: Random) -> Iterable[Call]:
    """For 01.zero-state-bytes."""

    def call(name: str, stage: int, ranks: int, largest: int, recipe: str = "", num_params: int = 0) -> Call:
        arguments = {
            "num_params": num_params or random.randrange(10**9, 10**11) * 64,
            "recipe": recipe or random.choice(["adamw-mixed", "adamw-mixed-fp32-gradients"]),
            "stage": stage,
        }
        return Call(name, "zero_state_bytes", {**arguments, "data_parallel": ranks, "largest_layer": largest})

    for stage in (0, 1, 2, 3):
        yield call("stages", stage, random.choice([4, 8, 64]), 0)
    for stage in (0, 1, 2, 3):
        for ranks in (2, 16):
            yield call("working-set", stage, ranks, random.randrange(10**6, 10**8))
    for stage in (1, 2, 3):
        yield call("one-rank", stage, 1, random.randrange(10**6, 10**8))
        few = 64 * random.randint(10, 90) + random.randint(1, 31)  # no whole number of bytes is a 64th
        yield call("stages", stage, 64, 0, "sgd-mixed", few)
    for recipe in ("adamw-fp32", "adamw-mixed-both-gradients", "sgd-momentum-mixed"):
        layer = random.randrange(10**8, 10**9)  # larger than a rank's share of all of them
        for stage in (2, 3):
            yield call("working-set", stage, 512, layer, recipe, 10 * layer)
    for stage in (1, 2, 3):
        yield call("stages", stage, random.randint(3, 5000), 0)
        yield call("working-set", stage, random.randint(3, 5000), random.randrange(10**4, 10**8))
    for stage, recipe in ((2, "adamw-mixed"), (3, "sgd-momentum-mixed")):
        yield call("own-parts", stage, random.choice([4, 8, 64]), random.randrange(10**6, 10**8), recipe)
    yield replace(call("stages", 3, random.choice([4, 8, 64]), 0), twice=True)


def activation_calls(random: Random) -> Iterable[Call]:
    """For 01.activation-bytes."""

    def call(name: str, **options: Any) -> Call:
        config = drawn_gpt(random).but(vocabulary=51_200)
        ranks = options.pop("tensor_parallel", 1)
        if ranks > 1:
            times = 16 if 16 % ranks == 0 else ranks  # heads that the ranks divide
            config = config.but(
                hidden=config.hidden * times, num_heads=config.num_heads * times, ffn=0, num_kv_heads=0
            )
            config = config.but(head_size=config.hidden // config.num_heads, ffn=4 * config.hidden)
            options = {"tensor_parallel": ranks, **options}
        sizes = {"sequence": random.randint(300, 4000), "micro_batch": random.randint(1, 6)}
        return Call(name, "activation_bytes", {"config": config, **sizes, **options})

    def of_any_size(name: str, **options: Any) -> Call:
        drawn = call(name, **options)
        sizes = {"sequence": random.randint(8, 200_000), "micro_batch": random.randint(7, 300)}
        return Call(name, drawn.function, {**drawn.arguments, **sizes})

    yield call("kept")
    yield call("kept", recompute="none")
    for ranks in (2, 8, 16):  # 16 does not divide the 24 of the formula
        yield call("tensor-parallel", tensor_parallel=ranks)
        yield call("tensor-parallel", tensor_parallel=ranks, recompute="selective")
        yield call("sequence-parallel", tensor_parallel=ranks, sequence_parallel=True)
    yield call("sequence-parallel", tensor_parallel=8, sequence_parallel=True, recompute="selective")
    yield call("recompute", recompute="selective")
    yield call("recompute", recompute="full")
    yield call("recompute", recompute="full", tensor_parallel=4, sequence_parallel=True)
    yield call("fused-attention", fused_attention=True)
    yield call("fused-attention", fused_attention=True, recompute="selective")
    yield call("fused-attention", fused_attention=True, recompute="full")
    yield call("fused-attention", fused_attention=True, tensor_parallel=4)
    for unknown in ("some", "", "Full", "selectively", "sel"):
        wrong = call("wrong-argument", recompute=unknown)
        yield Call("wrong-argument", wrong.function, wrong.arguments, may_raise=True)
    yield call("fused-attention", fused_attention=True, tensor_parallel=8, sequence_parallel=True)
    for options in ({"fused_attention": True}, {"tensor_parallel": 4, "sequence_parallel": True}):
        wrong = call("wrong-argument", recompute="half", **options)
        yield Call("wrong-argument", wrong.function, wrong.arguments, may_raise=True)
    some = random.sample((3, 5, 6, 7, 12, 24, 32), 3)
    yield of_any_size("kept")
    yield of_any_size("tensor-parallel", tensor_parallel=some[0])
    yield of_any_size("sequence-parallel", tensor_parallel=some[1], sequence_parallel=True)
    yield of_any_size("recompute", recompute="selective", tensor_parallel=some[2])
    yield of_any_size("recompute", recompute="full")
    yield of_any_size("fused-attention", fused_attention=True, tensor_parallel=some[2])
    for others in ({"dropout": 0.0}, {"head_size": 24, "ffn": 1000}):  # of the shape, only L, h and a count
        drawn = call("kept")
        config = drawn.arguments["config"].but(**others)
        yield Call("kept", drawn.function, {**drawn.arguments, "config": config})


def fits_calls(random: Random) -> Iterable[Call]:
    """For 01.largest-micro-batch."""

    def call(
        name: str,
        shape: ModelConfig,
        gpu: str,
        sequence: int,
        recompute: str = "none",
        recipe: str = "adamw-mixed",
    ) -> Call:
        arguments: dict[str, Any] = {"config": shape, "sequence": sequence, "gpu_bytes": GPUS[gpu].memory}
        arguments |= {"recipe": recipe, "recompute": recompute}
        return Call(name, "largest_micro_batch", arguments, WHOLE)

    def small(vocabulary: int) -> ModelConfig:
        return gpt(random.randint(10, 30), 1024, 16, vocabulary)

    yield call("fits", small(8000), "A100 40 GB", random.randint(800, 2048))
    yield call("fits", small(8000), "A100 80 GB", random.randint(800, 2048), "full")
    yield call("fits", small(8000), "H200 141 GB", random.randint(800, 2048), "selective")
    yield call("fits", small(8000), "A100 40 GB", random.randint(800, 2048), recipe="adamw-no-master")
    yield call("fits", small(8000), "H200 141 GB", random.randint(4, 16))  # thousands of short sequences
    yield call("logits", small(256_000), "A100 80 GB", random.randint(800, 2048))
    yield call("logits", small(128_000), "H100 80 GB", random.randint(800, 2048), "full")
    yield call("nothing-fits", gpt(32, 4096, 32), "A100 80 GB", 2048)
    yield call("own-parts", small(50_000), "A100 64 GB (Leonardo)", random.randint(800, 2048), "selective")
    for recipe in ("adamw-mixed-both-gradients", "adamw-fp32", "sgd-mixed"):
        yield call("fits", small(8000), "A100 40 GB", random.randint(200, 400), recipe=recipe)
    own_head = small(120_000).but(tied_embeddings=False, biases="none", head_size=96)
    yield call("fits", own_head, "A100 40 GB", random.randint(200, 400))
