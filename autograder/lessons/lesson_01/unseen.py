"""Unseen cases of lesson 01, with their values from `labkit.theory`.

`python -m autograder.lessons.lesson_01.unseen` records the visible ones into
`labkit/checks/lesson_01/visible.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import labkit.checks
from autograder.lessons.lesson_01.calls import UNSEEN, WHOLE, Call, cases_of
from autograder.lessons.lesson_01.memory_calls import (
    activation_calls,
    count_calls,
    fits_calls,
    inference_calls,
    state_calls,
    zero_calls,
)
from autograder.lessons.lesson_01.memory_values import corrected_slides
from autograder.lessons.lesson_01.shapes import drawn_gpt, drawn_groups, drawn_llama
from labkit.checks.case import Case
from labkit.checks.lesson_01.recorded_calls import digest
from labkit.theory.hardware import GPU, GPUS
from labkit.theory.models import ModelConfig, gpt, preset
from labkit.theory.units import GIB

VISIBLE_SEED = 1


def _flops_calls(random: Random) -> Iterable[Call]:
    def call(name: str, config: ModelConfig, recompute: str = "none") -> Call:
        sizes = {"sequence": random.randint(300, 9000), "batch": random.randint(2, 600)}
        return Call(name, "train_step_flops", {"config": config, **sizes, "recompute": recompute})

    yield call("gpt", drawn_gpt(random))
    yield call("gpt", gpt(96, 12_288, 96))
    yield call("llama", preset("Llama 3 8B"))
    yield call("llama", drawn_llama(random))
    yield call("llama", drawn_gpt(random, head_size=24))
    yield call("llama", drawn_llama(random, gated_mlp=False, num_kv_heads=1))
    yield call("llama", drawn_gpt(random, gated_mlp=True))
    yield call("llama", drawn_gpt(random, ffn=1111, tied_embeddings=False))
    large = {"config": preset("Llama 3 405B"), "sequence": 8192, "batch": 2048}  # 64 bits do not hold these
    yield Call("llama", "train_step_flops", {**large, "recompute": "none"})
    for recompute in ("selective", "full"):
        yield call("recompute", drawn_gpt(random), recompute)
        yield call("recompute", drawn_llama(random), recompute)
    yield call("recompute", drawn_gpt(random, head_size=24), "selective")
    yield call("own-parts", drawn_gpt(random))
    yield call("own-parts", drawn_llama(random))
    for shape in drawn_groups(random):
        yield call("llama", shape.but(head_size=shape.head_size + random.randint(0, 9)))
    sizes = {"sequence": random.randint(300, 9000), "batch": random.randint(2, 600), "recompute": "none"}
    for shape in _of_one_name(random):
        yield Call("gpt", "train_step_flops", {"config": shape, **sizes})


def _of_one_name(random: Random) -> list[ModelConfig]:
    """Two shapes that are called alike, as `gpt` calls all of its own."""
    layers = random.randint(3, 60)
    return [drawn_gpt(random).but(name="mine", num_layers=layers + more) for more in (0, 5)]


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
    yield call("all-gpus", drawn_gpt(random), 512, random.uniform(2, 9), random.choice([24, 256]), h100, 4096)
    yield call("all-gpus", drawn_gpt(random), 96, random.uniform(2, 9), random.choice([24, 256]), other)
    yield call("own-parts", drawn_llama(random), 256, random.uniform(2, 9), 16, GPUS["H200 141 GB"])
    yield call("all-gpus", drawn_gpt(random), 8, random.uniform(0.2, 0.8), 8, h100)
    # sequences that are shared among GPUs, as with model parallelism
    yield call("all-gpus", drawn_gpt(random), 8 * random.randint(2, 6) + 4, random.uniform(2, 9), 8, other)
    own_heads = drawn_gpt(random, head_size=24)
    yield call("all-gpus", own_heads, 64, random.uniform(2, 9), 8, h100)
    for shape in _of_one_name(random):
        yield call("all-gpus", shape, 64, random.uniform(2, 9), 8, h100)


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
    yield call("own-parts", 0.01, True, 4)
    # a twentieth of the bytes of this one are logits, of a vocabulary that is no multiple of 64
    few_words = gpt(1, 64, 2, random.randint(65, 75), 128, dropout=0.0)
    yield Call("activations", "predict_step", {"config": few_words, **sizes, "sequence": 100}, 0.03)


def _step_cases(seed: int) -> list[Case]:
    """Each call is evidence for one part of the prediction: the others are left out of what is compared. The
    state is what the student's own count is in.
    """
    of_state = ("state", "own-parts")
    cases = _drawn(_step_calls, seed)
    return [_only(case, "state" if case.kind in of_state else "activations") for case in cases]


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
    return cases_of(calls(Random(seed)), seed)


CASES: dict[str, Callable[[int], list[Case]]] = {
    "01.count-parameters": partial(_drawn, count_calls),
    "01.inference-bytes": partial(_drawn, inference_calls),
    "01.training-state-bytes": partial(_drawn, state_calls),
    "01.zero-state-bytes": partial(_drawn, zero_calls),
    "01.activation-bytes": partial(_drawn, activation_calls),
    "01.train-step-flops": partial(_drawn, _flops_calls),
    "01.model-flops-utilization": partial(_drawn, _utilization_calls),
    "01.largest-micro-batch": partial(_drawn, fits_calls),
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
