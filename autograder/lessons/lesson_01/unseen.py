"""Unseen cases of lesson 01, with their values from `labkit.theory`.

`python -m autograder.lessons.lesson_01.unseen` records the visible ones into
`labkit/checks/lesson_01/visible.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import labkit.checks
from autograder.lessons.lesson_01.memory_values import REFERENCE, corrected_slides
from labkit.checks.case import Case
from labkit.checks.lesson_01.recorded_calls import arguments_of, digest
from labkit.checks.shared.plain_numbers import EXACT
from labkit.theory.hardware import GPU, GPUS
from labkit.theory.models import PRESETS, ModelConfig, gpt, llama, preset
from labkit.theory.units import GIB

VISIBLE_SEED = 1
WHOLE = 0.0  # the tolerance where whole numbers are asked for
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
UNSEEN = ", unseen"  # ends the names of these cases, so that they differ from the visible ones
# ---- calls, and cases made of them


@dataclass(frozen=True)
class Call:
    """One call as evidence for a property; `expected` is left to REFERENCE unless the call must raise.

    naming: what the text of the error must hold.
    """

    property: str
    function: str
    arguments: dict[str, Any]
    tolerance: float = EXACT
    may_raise: bool = False
    naming: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        plain = {k: asdict(v) if isinstance(v, ModelConfig | GPU) else v for k, v in self.arguments.items()}
        return {
            "function": self.function,
            "arguments": plain,
            "tolerance": self.tolerance,
            "may_raise": self.may_raise,
            **({"naming": list(self.naming)} if self.naming else {}),
            "told": f"{self.function}({', '.join(f'{k}={_told(v)}' for k, v in self.arguments.items())})",
        }


def _told(value: Any) -> str:
    if isinstance(value, GPU):
        return value.name
    if isinstance(value, ModelConfig):
        return value.name if value in PRESETS.values() else _written(value)
    return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def _written(config: ModelConfig) -> str:
    """A shape as the code that makes it, with every field that is not what it would be if left out."""
    needed = {field.name: getattr(config, field.name) for field in fields(config)[:5]}
    plain = ModelConfig(**needed, name=config.name)
    others = {field.name: getattr(config, field.name) for field in fields(config)[5:]}
    more = {name: value for name, value in others.items() if value != getattr(plain, name)}
    return f"ModelConfig({', '.join(f'{k}={v!r}' for k, v in {**needed, **more}.items())})"


def _case(calls: list[Call], seed: int, own_parts: bool = False) -> Case:
    """One case for calls that are all evidence for one property."""
    data = [call.to_json() for call in calls]
    values = [
        None if call.may_raise else REFERENCE[call.function](**arguments_of(plain))
        for call, plain in zip(calls, data, strict=True)
    ]
    name = calls[0].property
    label = f"{name}{UNSEEN}"
    expected = {"values": values}
    return Case(label, 1, {"calls": data}, seed, kind=name, own_parts=own_parts, expected=expected)


def _cases(calls: Iterable[Call], seed: int) -> list[Case]:
    by_property: dict[str, list[Call]] = {}
    for call in calls:
        by_property.setdefault(call.property, []).append(call)
    return [_case(some, seed, own_parts=name == "own-parts") for name, some in by_property.items()]


# ---- shapes


def _gpt(random: Random, **fields: Any) -> ModelConfig:
    heads, size = random.choice([6, 8, 12, 20]), random.choice([32, 64, 80])
    return gpt(
        random.randint(3, 60),
        heads * size,
        heads,
        vocabulary=random.randint(900, 60_000),
        max_sequence=random.choice([500, 1024, 2048]),
    ).but(**fields)


def _llama(random: Random, **fields: Any) -> ModelConfig:
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


def _in_between(random: Random) -> list[ModelConfig]:
    """Between the families. Some differ from the one before in fields alone that have a default."""
    base = _gpt(random)
    odd_heads = base.but(head_size=72)
    return [
        base,
        base.but(tied_embeddings=False),
        base.but(biases="none", positions="rotary"),
        base.but(gated_mlp=True, ffn=1111),
        base.but(ffn=1111),
        odd_heads.but(num_kv_heads=odd_heads.num_heads // 2),
        _llama(random, num_kv_heads=1, num_layers=1),
        _llama(random, gated_mlp=False),
        _llama(random, tied_embeddings=True),
        _llama(random, biases="qkv"),
        _llama(random, norm="layernorm", positions="learned"),
    ]


# ---- one generator of calls an exercise


def _count_calls(random: Random) -> Iterable[Call]:
    count = partial(Call, function="count_parameters", tolerance=WHOLE)
    for shape in (preset("GPT-2 124M"), preset("GPT-2 1.5B"), _gpt(random), _gpt(random)):
        yield count("gpt", arguments={"config": shape})
    for shape in (preset("Llama 3 8B"), preset("Llama 3 70B"), _llama(random), _llama(random)):
        yield count("llama", arguments={"config": shape})
    for shape in _in_between(random):
        yield count("in-between", arguments={"config": shape})
    # Its last digits are more than a float has room for
    wide = gpt(random.randint(3, 60), 12 * 11_184_811, 12, ffn=2**27 - 1)
    yield count("in-between", arguments={"config": wide})


def _inference_calls(random: Random) -> Iterable[Call]:
    for bits in (16, 8, 4):
        num_params = random.randrange(10**9, 10**11)
        overhead = random.choice([1.2, 1.0])
        arguments = {"num_params": num_params, "bits": bits, "overhead": overhead}
        yield Call("weights", "inference_bytes", arguments)
    for bits, overhead in ((4, 1.0), (4, 1.5), (32, 0.75), (6, 1.0)):  # of few, half a byte counts
        arguments = {"num_params": 2 * random.randint(50, 500) + 1, "bits": bits, "overhead": overhead}
        yield Call("weights", "inference_bytes", arguments)
    grouped = preset("Llama 3 70B")
    shapes = (grouped, grouped.but(num_kv_heads=1), _llama(random), _gpt(random), _gpt(random, head_size=40))
    for shape, bits in zip(shapes, (16, 16, 8, 4, random.choice([16, 8])), strict=True):
        sizes = {"sequence": random.randint(100, 10**6), "batch": random.randint(2, 9)}
        yield Call("kv-cache", "kv_cache_bytes", {"config": shape, **sizes, "bits": bits})
    yield Call("weights", "inference_bytes", {"num_params": random.randrange(10**9, 10**11)})
    yield Call(
        "kv-cache", "kv_cache_bytes", {"config": _llama(random), "sequence": random.randint(100, 10**6)}
    )
    sizes = {"sequence": random.randint(1, 99), "batch": random.randint(10, 500)}
    for bits in random.sample((2, 3, 5, 6, 12, 32, 64), 2):
        yield Call("kv-cache", "kv_cache_bytes", {"config": _gpt(random), **sizes, "bits": bits})
        params = random.randrange(10**4, 10**13)
        yield Call("weights", "inference_bytes", {"num_params": params, "bits": bits, "overhead": 1.1})


def _state_calls(random: Random) -> Iterable[Call]:
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


def _zero_calls(random: Random) -> Iterable[Call]:
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


def _activation_calls(random: Random) -> Iterable[Call]:
    def call(name: str, **options: Any) -> Call:
        config = _gpt(random).but(vocabulary=51_200)
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


def _flops_calls(random: Random) -> Iterable[Call]:
    def call(name: str, config: ModelConfig, recompute: str = "none") -> Call:
        sizes = {"sequence": random.randint(300, 9000), "batch": random.randint(2, 600)}
        return Call(name, "train_step_flops", {"config": config, **sizes, "recompute": recompute})

    yield call("gpt", _gpt(random))
    yield call("gpt", gpt(96, 12_288, 96))
    yield call("llama", preset("Llama 3 8B"))
    yield call("llama", _llama(random))
    yield call("llama", _gpt(random, head_size=24))
    yield call("llama", _llama(random, gated_mlp=False, num_kv_heads=1))
    yield call("llama", _gpt(random, gated_mlp=True))
    yield call("llama", _gpt(random, ffn=1111, tied_embeddings=False))
    large = {"config": preset("Llama 3 405B"), "sequence": 8192, "batch": 2048}  # 64 bits do not hold these
    yield Call("llama", "train_step_flops", {**large, "recompute": "none"})
    for recompute in ("selective", "full"):
        yield call("recompute", _gpt(random), recompute)
        yield call("recompute", _llama(random), recompute)


def _utilization_calls(random: Random) -> Iterable[Call]:
    def call(
        name: str, config: ModelConfig, batch: int, seconds: float, gpus: int, gpu: GPU, sequence: int = 2048
    ) -> Call:
        arguments = {
            "config": config,
            "sequence": sequence,
            "batch": batch,
            "seconds": seconds,
            "num_gpus": gpus,
        }
        return Call(name, "model_flops_utilization", {**arguments, "gpu": gpu})

    paper = gpt(96, 12_288, 96).but(name="Korthikanti 175B")
    yield call("published", paper, 64, 13.75, 64, GPUS["A100 80 GB"])
    yield call("published", preset("Llama 3 8B"), 128, random.uniform(10, 20), 1, GPUS["H100 80 GB"])
    h100, other = GPUS["H100 80 GB"], GPU("a GPU that is not in the table", 48 * GIB, 181e12)
    yield call("all-gpus", _gpt(random), 512, random.uniform(2, 9), random.choice([24, 256]), h100, 4096)
    yield call("all-gpus", _gpt(random), 96, random.uniform(2, 9), random.choice([24, 256]), other)
    yield call("own-parts", _llama(random), 256, random.uniform(2, 9), 16, GPUS["H200 141 GB"])
    yield call("all-gpus", _gpt(random), 8, random.uniform(0.2, 0.8), 8, h100)
    # sequences that are shared among GPUs, as with model parallelism
    yield call("all-gpus", _gpt(random), 8 * random.randint(2, 6) + 4, random.uniform(2, 9), 8, other)


def _fits_calls(random: Random) -> Iterable[Call]:
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


def _batch_calls(random: Random) -> Iterable[Call]:
    for _ in range(3):
        b, accumulation, d = random.randint(1, 8), random.randint(2, 40), random.choice([1, 3, 16, 512])
        arguments = {"micro_batch": b, "accumulation": accumulation, "data_parallel": d}
        yield Call("sequences", "global_batch_size", arguments, WHOLE)
    long = {
        "micro_batch": 3,
        "accumulation": 10**9 + 7,
        "data_parallel": 10**9 + 9,
    }  # more digits than a float's
    yield Call("sequences", "global_batch_size", long, WHOLE)

    def steps(name: str, tokens: int, sequence: int, b: int, d: int, **more: Any) -> Call:
        arguments = {"tokens_per_step": tokens, "sequence": sequence, "micro_batch": b, "data_parallel": d}
        return Call(name, "accumulation_steps", arguments, WHOLE, **more)

    yield steps("accumulation", 2**22, 4096, 2, 128)
    yield steps("accumulation", 2**22, 4096, 2, 512)
    b, d, k, s = random.randint(1, 4), random.randint(2, 99), random.randint(2, 30), random.randint(500, 5000)
    yield steps("accumulation", b * d * k * s, s, b, d)
    yield steps("does-not-divide", 2**22, 4096, 2, 768, may_raise=True)
    yield steps("does-not-divide", 4_000_000, 4096, 1, 1, may_raise=True)
    yield steps("does-not-divide", 36 * s, s, 4, 6, may_raise=True)  # 4 divides 36, and 6 does; 24 does not
    yield steps("does-not-divide", 36 * s, s, 8, 6, may_raise=True)
    yield steps("does-not-divide", 36 * s, s, 6, 8, may_raise=True)
    yield steps("does-not-divide", 2**24 + 1, 4096, 2, 512, may_raise=True)  # one token too many
    yield steps("does-not-divide", 2**56 + 1, 4096, 2, 512, may_raise=True)
    at_once = {
        "micro_batch": random.randint(2, 8),
        "accumulation": 1,
        "data_parallel": random.randint(2, 512),
    }
    yield Call("sequences", "global_batch_size", at_once, WHOLE)


def _step_calls(random: Random) -> Iterable[Call]:
    def call(name: str, tolerance: float, fused: bool, element_bytes: int) -> Call:
        heads, layers, vocabulary = random.choice([4, 8]), random.randint(2, 6), random.randint(1500, 4000)
        shape = gpt(layers, heads * 32, heads, vocabulary, 1024, dropout=0.0)
        sizes = {"sequence": random.randint(200, 600), "micro_batch": random.randint(2, 5)}
        options = {"element_bytes": element_bytes, "fused_attention": fused}
        return Call(name, "predict_step", {"config": shape, **sizes, **options}, tolerance)

    for element_bytes in (2, 4):
        yield call("state", 0.01, True, element_bytes)
        yield call("activations", 0.03, True, element_bytes)
        yield call("scores", 0.03, False, element_bytes)
    # the embedding is a fifth of such a model, and there are two
    own_head = gpt(
        random.randint(2, 4), 256, 8, random.randint(3000, 4000), 1024, tied_embeddings=False, dropout=0.0
    )
    sizes = {"sequence": 300, "micro_batch": 2, "element_bytes": 4, "fused_attention": True}
    yield Call("state", "predict_step", {"config": own_head, **sizes}, 0.01)
    # biases and norms are 13 h of a layer, beside its 12 h^2: more than a hundredth of this one
    narrow = gpt(random.randint(4, 8), 64, 2, random.randint(50, 99), 128, dropout=0.0)
    yield Call("state", "predict_step", {"config": narrow, **sizes, "sequence": 100}, 0.01)


def _step_cases(seed: int) -> list[Case]:
    """Each call is evidence for one part of the prediction: the others are left out of what is compared."""
    return [
        _only(case, "state" if case.kind == "state" else "activations") for case in _drawn(_step_calls, seed)
    ]


def _only(case: Case, part: str) -> Case:
    calls = [{**call, "part": part} for call in case.params["calls"]]
    values = [value[part] for value in case.expected["values"]]
    return Case(**{**case.to_json(), "params": {"calls": calls}, "expected": {"values": values}})


def _slide_cases(seed: int) -> list[Case]:
    """The answers are the same each time, so they are kept as digests."""
    of = {
        "units": ["gib_of_700e9_bytes"],
        "state": [
            "gb_of_70b_adamw_mixed",
            "optimizer_bytes_per_parameter_adamw",
            "optimizer_bytes_per_parameter_sgd_momentum",
            "gb_of_236b_adamw_mixed",
        ],
        "activations": ["full_recompute_bytes", "score_term_with_8_ranks"],
        "rates": ["h100_dense_bf16_tflops", "sequences_of_4000_in_4_million_tokens"],
    }
    answers, cases = corrected_slides(), []
    for name, questions in of.items():
        calls = [
            {**Call(name, "corrected_slides", {}).to_json(), "part": part, "told": part} for part in questions
        ]
        values = [{"digest": digest(part, answers[part])} for part in questions]
        expected = {"values": values}
        cases.append(Case(f"{name}{UNSEEN}", 1, {"calls": calls}, seed, kind=name, expected=expected))
    return cases


def _drawn(calls: Callable[[Random], Iterable[Call]], seed: int) -> list[Case]:
    return _cases(calls(Random(seed)), seed)


CASES: dict[str, Callable[[int], list[Case]]] = {
    "01.count-parameters": partial(_drawn, _count_calls),
    "01.inference-bytes": partial(_drawn, _inference_calls),
    "01.training-state-bytes": partial(_drawn, _state_calls),
    "01.zero-state-bytes": partial(_drawn, _zero_calls),
    "01.activation-bytes": partial(_drawn, _activation_calls),
    "01.train-step-flops": partial(_drawn, _flops_calls),
    "01.model-flops-utilization": partial(_drawn, _utilization_calls),
    "01.largest-micro-batch": partial(_drawn, _fits_calls),
    "01.global-batch-size": partial(_drawn, _batch_calls),
    "01.slide-mistakes": _slide_cases,
    "01.predict-step": _step_cases,
}


def recorded() -> dict[str, list[dict[str, Any]]]:
    """The visible cases, as the file beside the lesson's checks holds them."""
    return {
        name: [case.to_json() | {"name": case.name.removesuffix(UNSEEN)} for case in draw(VISIBLE_SEED)]
        for name, draw in CASES.items()
    }


def main() -> None:
    """Write the visible cases."""
    path = Path(labkit.checks.__path__[0]) / "lesson_01" / "visible.json"
    path.write_text(json.dumps(recorded(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
