"""Other memory calculators: the tool itself where it is installed, the rule in its source where it is not.

`pip install accelerate deepspeed` brings two of them. EleutherAI's script is in no package index.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable
from typing import Any

import torch

from labkit.model import ModelConfig


def installed(module: str, function: str) -> Callable[..., Any] | None:
    """A tool's own function, or None where the tool is not installed."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return getattr(importlib.import_module(module), function)
    except ImportError:
        return None


def asked() -> str:
    """How each peer was asked, in words."""
    accelerate = installed("accelerate.commands.estimate", "estimate_training_usage")
    deepspeed = installed("deepspeed.runtime.zero.stage3", "estimate_zero3_model_states_mem_needs")
    how = {"accelerate": accelerate, "DeepSpeed": deepspeed}
    told = [f"{name}: {'the tool itself' if tool else 'by its rule'}" for name, tool in how.items()]
    return ", ".join([*told, "EleutherAI: by its rule"])


def eleuther_parameters(config: ModelConfig) -> float:
    """With the options for the shape (--kv-size-ratio, -ff, -nl), by the script that a user would take.

    Tied embeddings and an MLP a whole number of times as wide: calc_transformer_params.py, which asks for
    both. Anything else: calc_transformer_mem.py.
    """
    h, layers = config.hidden, config.num_layers
    attention = 2 * (1 + config.num_kv_heads / config.num_heads) * layers * h * h
    matrices = attention + (3 if config.gated_mlp else 2) * layers * h * config.ffn
    if config.tied_embeddings and config.ffn % h == 0:
        return matrices + (config.vocabulary + config.max_sequence) * h + 13 * h * layers
    return matrices + (2 * config.vocabulary + config.max_sequence) * h + 8 * h * layers + 2 * h


def eleuther_activations(config: ModelConfig, sequence: int, batch: int, element: int, fused: bool) -> float:
    """Its training case; for fused attention with --checkpoint-activations, which leaves out the scores."""
    scores = 0 if fused else (2 * element + 1) * config.num_heads * sequence / config.hidden
    return sequence * batch * config.hidden * config.num_layers * (16 * element + 2 + scores)


def deepspeed_state(num_params: int, stage: int, gpus: int, largest: int) -> float:
    """Bytes a GPU without offload: 2N + 18N/n for stage 2, 18N/n and 4 bytes of the largest layer for 3."""
    if stage == 2:
        tool = installed("deepspeed.runtime.zero.stage_1_and_2", "estimate_zero2_model_states_mem_needs")
        rule = 2 * num_params + 18 * num_params / gpus
        return tool(num_params, gpus, cpu_offload=False)[1] if tool else rule
    tool = installed("deepspeed.runtime.zero.stage3", "estimate_zero3_model_states_mem_needs")
    rule = 18 * num_params / gpus + 4 * largest
    return tool(num_params, largest, gpus, cpu_offload=False)[1] if tool else rule


def accelerate_training(num_params: int, dtype: torch.dtype) -> float:
    """Bytes: the largest of the four numbers of `accelerate estimate-memory`, its answer for training with
    Adam.
    """
    tool = installed("accelerate.commands.estimate", "estimate_training_usage")
    if tool is not None:
        return max(tool(4 * num_params, str(dtype).removeprefix("torch.")).values())
    return 16 * num_params if dtype == torch.float32 else 8 * num_params
