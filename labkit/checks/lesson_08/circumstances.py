"""What a stack of equal layers may be and what may go before its watched step, which changes nothing of how
its weights come and go.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from torch import Tensor, nn

from labkit.checks.case import Case

BACKWARDS = 2  # before the one that is watched, where a case does not say otherwise
ALL: Mapping[str, Any] = {
    "bias": True,  # layers have one
    "input_grad": True,  # x asks for a gradient, and is made of something that does
    "adds_up": True,  # the gradients of an earlier micro-batch are there
    "in_eval": True,  # the step is made in eval()
    "backwards": 4,  # made before
}
"""What a case may say."""


def some(draw: Random) -> dict[str, Any]:
    """Some of them."""
    return {name: value for name, value in ALL.items() if draw.random() < 0.5}


def adds_up(case: Case) -> bool:
    """Whether the watched backward finds the gradients of the one before."""
    return bool(case.params.get("adds_up"))


def backwards_before(case: Case) -> int:
    """How many there are before the one that is watched, along the gradients of another row."""
    number: int = case.params.get("backwards", BACKWARDS)
    return number


def as_input(case: Case, x: Tensor) -> Tensor:
    """x as the watched step is given it."""
    return x.clone().requires_grad_() * 1.0 if case.params.get("input_grad") else x


def in_mode(case: Case, module: nn.Module) -> None:
    """Of training, or of evaluation."""
    module.train(not case.params.get("in_eval"))
