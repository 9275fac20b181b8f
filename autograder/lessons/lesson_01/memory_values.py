"""What each function of lesson 01 should return, by `labkit.theory`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from labkit.theory.activations import AttentionKernel, eager_counting, layer_activation_bytes
from labkit.theory.batches import accumulation_steps, global_batch_size, largest_that_fits
from labkit.theory.flops import train_step_flops, utilization
from labkit.theory.hardware import GPU, GPUS
from labkit.theory.inference import kv_cache_bytes, weight_bytes
from labkit.theory.memory import TrainingPlan, training_memory
from labkit.theory.models import ModelConfig, gpt
from labkit.theory.parameters import count_parameters
from labkit.theory.recipes import Recipe, state_bytes
from labkit.theory.units import GIB

HEADROOM = 0.9

RECIPES = {  # the names the lesson gives the recipes
    "adamw-fp32": Recipe("adamw-fp32", 4, 4, 0, 8),
    "adamw-mixed": Recipe("adamw-mixed", 2, 2, 4, 8),
    "adamw-mixed-fp32-gradients": Recipe("adamw-mixed-fp32-gradients", 2, 4, 4, 8),
    "adamw-mixed-both-gradients": Recipe("adamw-mixed-both-gradients", 2, 6, 4, 8),
    "adamw-no-master": Recipe("adamw-no-master", 2, 2, 0, 8),
    "sgd-momentum-mixed": Recipe("sgd-momentum-mixed", 2, 2, 4, 4),
    "sgd-mixed": Recipe("sgd-mixed", 2, 2, 4, 0),
}


def _state(num_params: int, recipe: str) -> dict[str, float]:
    return asdict(state_bytes(num_params, RECIPES[recipe]))


def _zero(
    num_params: int, recipe: str, stage: int, data_parallel: int, largest_layer: int
) -> dict[str, float]:
    kept = RECIPES[recipe]
    working = 0
    if data_parallel > 1:
        working = largest_layer * (
            (kept.gradients if stage >= 2 else 0) + (kept.weights if stage == 3 else 0)
        )
    return {**asdict(state_bytes(num_params, kept, stage, data_parallel)), "working": working}


def _activations(
    config: ModelConfig, sequence: int, micro_batch: int, fused_attention: bool = False, **options: Any
) -> float:
    """By the formulas for a GPT with dropout, for which the layers, h and a of a shape count and no more."""
    kernel: AttentionKernel = "fused" if fused_attention else "explicit"
    return config.num_layers * layer_activation_bytes(
        gpt(config.num_layers, config.hidden, config.num_heads),
        sequence,
        micro_batch,
        attention=kernel,
        **options,
    )


def _mfu(config: ModelConfig, sequence: int, batch: int, seconds: float, num_gpus: int, gpu: GPU) -> float:
    return utilization(train_step_flops(config, sequence, batch), seconds, num_gpus, gpu.dense_bf16)


def _fits(config: ModelConfig, sequence: int, gpu_bytes: int, recipe: str, recompute: str) -> int:
    state = state_bytes(count_parameters(config).total, RECIPES[recipe]).total
    logits = (2 + 4 + 4) * sequence * config.vocabulary  # the head's output, its fp32 copy, and what is kept
    one = _activations(config, sequence, 1, True, recompute=recompute) + logits
    return largest_that_fits(lambda b: state + b * one, HEADROOM * gpu_bytes)


def _global_batch(micro_batch: int, accumulation: int, data_parallel: int) -> int:
    return global_batch_size(micro_batch, accumulation, data_parallel)


def _accumulation(tokens_per_step: int, sequence: int, micro_batch: int, data_parallel: int) -> int:
    if tokens_per_step % sequence:
        raise ValueError(f"{tokens_per_step} tokens are no whole number of sequences of {sequence}")
    return accumulation_steps(tokens_per_step // sequence, micro_batch, data_parallel)


def _step(
    config: ModelConfig, sequence: int, micro_batch: int, element_bytes: int, fused_attention: bool
) -> dict[str, float]:
    plan = TrainingPlan(
        config,
        sequence,
        micro_batch,
        Recipe("one type, AdamW", element_bytes, element_bytes, 0, 2 * element_bytes),
        attention="fused" if fused_attention else "explicit",
        counting=eager_counting(element_bytes),
    )
    memory = training_memory(plan)
    return {"state": memory.state, "activations": memory.activations + memory.logits}


def corrected_slides() -> dict[str, float]:
    """Each with the published source of the right number (see the lesson's text)."""
    mixed = RECIPES["adamw-mixed"]
    return {
        "gib_of_700e9_bytes": 700e9 / GIB,
        "gb_of_70b_adamw_mixed": 70e9 * mixed.bytes_per_parameter / 1e9,
        "optimizer_bytes_per_parameter_adamw": mixed.optimizer,
        "optimizer_bytes_per_parameter_sgd_momentum": RECIPES["sgd-momentum-mixed"].optimizer,
        "gb_of_236b_adamw_mixed": 236e9 * mixed.bytes_per_parameter / 1e9,
        "full_recompute_bytes": layer_activation_bytes(gpt(1, 1000, 10), 1000, 1, "full"),
        "score_term_with_8_ranks": 5 * 64 * 2048 / (8192 * 8),
        "h100_dense_bf16_tflops": GPUS["H100 80 GB"].dense_bf16 / 1e12,
        "sequences_of_4000_in_4_million_tokens": 1000,
    }


REFERENCE: dict[str, Callable[..., Any]] = {
    "count_parameters": lambda config: count_parameters(config).total,
    "inference_bytes": lambda num_params, bits=16, overhead=1.2: weight_bytes(num_params, bits) * overhead,
    "kv_cache_bytes": lambda config, sequence, batch=1, bits=16: kv_cache_bytes(
        config, sequence, batch, bits / 8
    ),
    "training_state_bytes": _state,
    "zero_state_bytes": _zero,
    "activation_bytes": _activations,
    "train_step_flops": train_step_flops,
    "model_flops_utilization": _mfu,
    "largest_micro_batch": _fits,
    "global_batch_size": _global_batch,
    "accumulation_steps": _accumulation,
    "predict_step": _step,
}
