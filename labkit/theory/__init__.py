"""The arithmetic of training: memory, operations, batches. Pure Python; bytes inside, units labelled outside.

from labkit.theory import TrainingPlan, preset, recipe, training_memory
print(training_memory(TrainingPlan(preset("Llama 3 8B"), sequence=4096)))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.theory.activations import layer_activation_bytes as layer_activation_bytes
    from labkit.theory.batches import accumulation_steps as accumulation_steps
    from labkit.theory.batches import global_batch_size as global_batch_size
    from labkit.theory.flops import forward_flops as forward_flops
    from labkit.theory.flops import train_step_flops as train_step_flops
    from labkit.theory.flops import utilization as utilization
    from labkit.theory.hardware import GPU as GPU
    from labkit.theory.hardware import GPUS as GPUS
    from labkit.theory.inference import inference_bytes as inference_bytes
    from labkit.theory.inference import kv_cache_bytes as kv_cache_bytes
    from labkit.theory.memory import MemoryBreakdown as MemoryBreakdown
    from labkit.theory.memory import TrainingPlan as TrainingPlan
    from labkit.theory.memory import training_memory as training_memory
    from labkit.theory.memory import worst_stage as worst_stage
    from labkit.theory.models import PRESETS as PRESETS
    from labkit.theory.models import ModelConfig as ModelConfig
    from labkit.theory.models import gpt as gpt
    from labkit.theory.models import llama as llama
    from labkit.theory.models import preset as preset
    from labkit.theory.parameters import count_parameters as count_parameters
    from labkit.theory.recipes import RECIPES as RECIPES
    from labkit.theory.recipes import Recipe as Recipe
    from labkit.theory.recipes import recipe as recipe
    from labkit.theory.recipes import state_bytes as state_bytes
    from labkit.theory.units import GB as GB
    from labkit.theory.units import GIB as GIB
    from labkit.theory.units import bytes_text as bytes_text

# Imported when first used, so that one part can be taken away where it would give an answer away.
_HOMES = {
    "GB": "units",
    "GIB": "units",
    "GPU": "hardware",
    "GPUS": "hardware",
    "MemoryBreakdown": "memory",
    "ModelConfig": "models",
    "PRESETS": "models",
    "RECIPES": "recipes",
    "Recipe": "recipes",
    "TrainingPlan": "memory",
    "accumulation_steps": "batches",
    "bytes_text": "units",
    "count_parameters": "parameters",
    "forward_flops": "flops",
    "global_batch_size": "batches",
    "gpt": "models",
    "inference_bytes": "inference",
    "kv_cache_bytes": "inference",
    "layer_activation_bytes": "activations",
    "llama": "models",
    "preset": "models",
    "recipe": "recipes",
    "state_bytes": "recipes",
    "train_step_flops": "flops",
    "training_memory": "memory",
    "utilization": "flops",
    "worst_stage": "memory",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"labkit.theory has no {name!r}; it has {', '.join(_HOMES)}")
    return getattr(importlib.import_module(f"labkit.theory.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(_HOMES)
