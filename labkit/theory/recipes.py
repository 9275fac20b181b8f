"""Bytes a parameter costs in training, by named precision recipe, and what ZeRO leaves on one rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Bytes per parameter of each training state.

    weights: the copy the forward uses.  gradients: all copies kept over a backward.  master: fp32 weights the
    optimizer updates (0 when it updates the forward's own).  moments: the optimizer's running averages.
    """

    name: str
    weights: int
    gradients: int
    master: int
    moments: int
    source: str = ""

    @property
    def optimizer(self) -> int:
        """Master weights and moments: what ZeRO stage 1 shards (K in the ZeRO paper)."""
        return self.master + self.moments

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes of weights, gradients and optimizer state for one parameter."""
        return self.weights + self.gradients + self.optimizer


_ALL = (
    Recipe("fp32 AdamW", 4, 4, 0, 8, "everything in fp32"),
    Recipe(
        "mixed AdamW, 16 B", 2, 2, 4, 8, "ZeRO (arXiv 1910.02054) section 3.1; EleutherAI Transformer Math"
    ),
    Recipe("mixed AdamW, 18 B", 2, 4, 4, 8, "Megatron-LM: fp32 main gradients; Bekman, ML Engineering"),
    Recipe(
        "mixed AdamW, 20 B",
        2,
        2 + 4,
        4,
        8,
        "nanotron: bf16 gradients and their fp32 sum (Ultra-Scale Playbook)",
    ),
    Recipe("bf16 weights, fp32 AdamW, 12 B", 2, 2, 0, 8, "no master weights"),
    Recipe("bf16 AdamW, 8 B", 2, 2, 0, 4, "everything in bf16: updates below 2^-8 of a weight vanish"),
    Recipe("mixed 8-bit AdamW, 10 B", 2, 2, 4, 2, "bitsandbytes; EleutherAI Transformer Math"),
    Recipe("mixed SGD momentum, 12 B", 2, 2, 4, 4, "EleutherAI Transformer Math"),
    Recipe("mixed SGD, 8 B", 2, 2, 4, 0, "EleutherAI Transformer Math"),
    Recipe("fp32 SGD momentum", 4, 4, 0, 4, "everything in fp32"),
    Recipe("fp32 SGD", 4, 4, 0, 0, "everything in fp32"),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
ZERO_PAPER = RECIPES["mixed AdamW, 16 B"]
MEGATRON = RECIPES["mixed AdamW, 18 B"]
NANOTRON = RECIPES["mixed AdamW, 20 B"]


def recipe(name: str) -> Recipe:
    """A recipe by name; the error lists the names there are."""
    if name not in RECIPES:
        raise KeyError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


@dataclass(frozen=True)
class StateBytes:
    """Bytes of the training state on one rank."""

    weights: float
    gradients: float
    optimizer: float

    def __add__(self, other: StateBytes) -> StateBytes:
        return StateBytes(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
        )

    @property
    def total(self) -> float:
        """Bytes of weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.optimizer


def state_bytes(num_params: float, recipe: Recipe, zero_stage: int = 0, data_parallel: int = 1) -> StateBytes:
    """Weights, gradients and optimizer state of `num_params` parameters on one of `data_parallel` ranks.

    ZeRO (arXiv 1910.02054, section 5): stage 1 shards the optimizer state, 2 the gradients too, 3 the weights
    too. This is the resting state; `labkit.theory.memory` adds the layers gathered while they are in use.
    """
    if zero_stage not in (0, 1, 2, 3):
        raise ValueError(f"zero_stage must be 0, 1, 2 or 3, got {zero_stage}")
    if data_parallel < 1:
        raise ValueError(f"data_parallel must be at least 1, got {data_parallel}")

    def share(bytes_each: int, sharded_from: int) -> float:
        whole = num_params * bytes_each
        return whole / data_parallel if zero_stage >= sharded_from else whole

    return StateBytes(share(recipe.weights, 3), share(recipe.gradients, 2), share(recipe.optimizer, 1))


def zero_traffic_elements(num_params: float, zero_stage: int, data_parallel: int) -> float:
    """Elements one rank sends in a step: 2, 2, 2, 3 Psi (d-1)/d for stages 0 to 3 (ZeRO, section 7)."""
    return {0: 2, 1: 2, 2: 2, 3: 3}[zero_stage] * num_params * (data_parallel - 1) / data_parallel
