"""This memory calculator and three others, against what is known: released models and measured steps.

    python benchmarks/calculators.py [--json]

Peers: EleutherAI's `calc_transformer_mem.py` (github.com/EleutherAI/cookbook), DeepSpeed's
`estimate_zero2/3_model_states_mem_needs` (0.19) and Hugging Face's `accelerate estimate-memory` (1.15).
Each is asked only what it claims to answer: the tool itself where it is installed, otherwise the rule in its
source. The truth is the number of elements in the published weights, or the bytes that a training step really
held on this host.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import torch
from _calculator_peers import (
    accelerate_training,
    asked,
    deepspeed_state,
    eleuther_activations,
    eleuther_parameters,
)
from _common import arguments

from labkit.model import ModelConfig, Transformer, explicit_attention, fused_attention, gpt
from labkit.record.memory import StepMemory, measure_step
from labkit.show.calculator import SEQUENCES, MemoryCalculator
from labkit.theory import TrainingPlan, count_parameters, preset, state_bytes, training_memory
from labkit.theory.activations import AttentionKernel, eager_counting
from labkit.theory.memory import gathered_bytes
from labkit.theory.recipes import NANOTRON, RECIPES, ZERO_PAPER
from labkit.theory.units import in_gib

EXACT = 1e-3  # below this an error is rounding and small buffers: a ratio of two such errors says nothing


@dataclass(frozen=True)
class Row:
    """Errors are shares of the true value.

    ratio: how many times smaller ours is; none where ours is exact, for then it could be any number.
    """

    name: str
    ours: float
    peer: float
    unit: str
    target: str
    met: bool
    why: str = ""
    peer_name: str = ""
    ratio: float | None = field(init=False)

    def __post_init__(self) -> None:
        exact = self.unit == "error" and self.ours < EXACT
        object.__setattr__(self, "ratio", None if exact else self.peer / self.ours)


# ---- the comparisons


def error(value: float, truth: float) -> float:
    return abs(value - truth) / truth


def parameter_rows() -> list[Row]:
    released = {"GPT-2 124M": 124_439_808, "GPT-2 1.5B": 1_557_611_200, "Llama 3 8B": 8_030_261_248}
    released |= {"Llama 3.2 1B": 1_235_814_400, "Llama 3 70B": 70_553_706_496}
    why = "positions counted for rotary models too; 13h of norms and biases a layer, or 8h where untied"
    rows = []
    for name, truth in released.items():
        ours, peer = (
            error(n, truth) for n in (count_parameters(preset(name)).total, eleuther_parameters(preset(name)))
        )
        rows.append(Row(f"parameters of {name}", ours, peer, "error", "exact", ours == 0, why, "EleutherAI"))
    return rows


def measured(config: ModelConfig, sequence: int, batch: int, dtype: torch.dtype, fused: bool) -> StepMemory:
    model = Transformer(config, fused_attention if fused else explicit_attention).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(config.vocabulary, (batch, sequence + 1))
    return measure_step(model, optimizer, lambda: model.loss(ids[:, :-1], ids[:, 1:]))


def step_rows() -> list[Row]:
    config = gpt(6, 256, 8, vocabulary=4000, max_sequence=512, dropout=0.0)
    rows = []
    for dtype, element, fused in ((torch.float32, 4, False), (torch.bfloat16, 2, True)):
        step = measured(config, 384, 2, dtype, fused)
        recipe = RECIPES["fp32 AdamW" if element == 4 else "bf16 AdamW, 8 B"]
        kernel: AttentionKernel = "fused" if fused else "explicit"
        theory = training_memory(
            TrainingPlan(config, 384, 2, recipe, attention=kernel, counting=eager_counting(element))
        )
        kind = f"{str(dtype)[6:]}, {kernel} attention"
        state = step.weights + step.gradients + step.optimizer
        ours, peer = (
            error(theory.state, state),
            error(accelerate_training(count_parameters(config).total, dtype), state),
        )
        why = "one rule a dtype, 16 or 8 B a parameter: right for these, half of what mixed AdamW keeps"
        rows.append(
            Row(f"state, measured, {kind}", ours, peer, "error", "1%", ours < 0.01, why, "accelerate")
        )
        ours = error(theory.activations + theory.logits, step.activations)
        peer = error(eleuther_activations(config, 384, 2, element, fused), step.activations)
        why = "no head or logits; dropout assumed; fused attention asked for as -ca, which drops the scores"
        rows.append(
            Row(f"activations, measured, {kind}", ours, peer, "error", "3%", ours < 0.03, why, "EleutherAI")
        )
    return rows


def same_question() -> list[tuple[str, str, str]]:
    """Llama 3 8B on 64 GPUs, state only: what each tool answers, in GiB, for ZeRO stages 2 and 3, and why."""
    num_params, largest = count_parameters(preset("Llama 3 8B")).total, 128_256 * 4096
    guess = eleuther_parameters(preset("Llama 3 8B"))
    buckets = {2: 5e8 * 2, 3: 5e8 * 2 + 1e9 * 2}

    def ours(stage: int) -> float:
        plan = TrainingPlan(preset("Llama 3 8B"), 4096, recipe=NANOTRON, data_parallel=64, zero_stage=stage)
        memory = training_memory(plan)
        return memory.state + gathered_bytes(plan, 0)

    def eleuther(stage: int) -> float:
        weights = 2 * guess / (64 if stage == 3 else 1)
        return weights + 16 * guess / 64 + buckets[stage]

    answers = {
        "ZeRO paper": (
            lambda z: state_bytes(num_params, ZERO_PAPER, z, 64).total,
            "16 B a parameter, nothing in use",
        ),
        "ours, 20 B recipe": (
            ours,
            "20 B; the unit in use and the next one gathered, one unit's gradient whole",
        ),
        "DeepSpeed": (
            lambda z: deepspeed_state(num_params, z, 64, largest),
            "20 and 18 B; 4 B of the largest layer",
        ),
        "EleutherAI": (eleuther, "18 B; buckets of 0.5e9 and 1e9 live parameters, DeepSpeed's defaults"),
    }
    return [
        (name, "".join(f"{in_gib(rule(stage)):>9.2f}" for stage in (2, 3)), why)
        for name, (rule, why) in answers.items()
    ]


def speed_row() -> Row:
    shown = MemoryCalculator(model="Llama 3 405B", pipeline_parallel=64, num_micro_batches=64)
    seconds = []
    for value in [*SEQUENCES, *reversed(SEQUENCES)] * 3:
        begin = time.perf_counter()
        shown.controls["sequence"].value = value
        _ = shown.html
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds)
    return Row(
        "one update of the calculator",
        median,
        0.050,
        "s",
        "0.05 s",
        median < 0.050,
        "largest model, 64 stages",
        "target",
    )


def main() -> None:
    as_json = arguments(__doc__).parse_args().json
    torch.manual_seed(0)
    rows = [*parameter_rows(), *step_rows(), speed_row()]
    if as_json:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        print(
            json.dumps(
                {
                    "date": now,
                    "host": platform.node(),
                    "asked": asked(),
                    "rows": [asdict(row) for row in rows],
                },
                indent=1,
            )
        )
        return
    print(f"{'':<56}{'ours':>9}{'peer':>9}{'ratio':>8}  target")
    for row in rows:
        scale, unit = (1000, "ms") if row.unit == "s" else (100, "%")
        ratio = "exact" if row.ratio is None else f"{row.ratio:.1f}"
        numbers = f"{scale * row.ours:>7.2f}{unit:<2}{scale * row.peer:>7.2f}{unit:<2}{ratio:>8}"
        print(f"{row.name:<56}{numbers}  {row.target}{'' if row.met else '  MISSED'}")
        print(f"    against {row.peer_name}: {row.why}")
    print(f"\n{asked()}")
    print("\nLlama 3 8B on 64 GPUs, state only, GiB         ZeRO-2   ZeRO-3")
    for name, numbers, why in same_question():
        print(f"    {name:<38}{numbers}   {why}")


if __name__ == "__main__":
    main()
