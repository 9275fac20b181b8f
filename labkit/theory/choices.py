"""A training plan from what somebody chose by name, as the calculators' controls give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.theory.memory import TrainingPlan
from labkit.theory.models import PRESETS
from labkit.theory.recipes import RECIPES


def plan_of(settings: Mapping[str, Any]) -> TrainingPlan:
    """The plan that settings describe: `model`, `gpu` and `recipe` by name, the rest a plan's fields.

    ValueError says which two do not go together.
    """
    fields = {name: value for name, value in settings.items() if name not in ("model", "gpu", "recipe")}
    return TrainingPlan(PRESETS[settings["model"]], recipe=RECIPES[settings["recipe"]], **fields)
