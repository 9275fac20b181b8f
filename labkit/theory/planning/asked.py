"""What people type, as models, numbers and plans. ValueError says what was expected and what was found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from labkit.theory.hugging_face import read_config
from labkit.theory.models import PRESETS, ModelConfig
from labkit.theory.planning.cluster import Cluster, Fabric
from labkit.theory.planning.job import Job, Plan
from labkit.theory.planning.question import Question
from labkit.theory.planning.software import SOFTWARE
from labkit.theory.recipes import RECIPES, Recipe

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_POSITIONS = ("dp", "tp", "pp", "mb", "zero", "v", "cp", "ep")
_FIELDS = {
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "mb": "micro_batch",
    "zero": "zero",
    "v": "chunks",
    "cp": "context",
    "ep": "expert",
    "recompute": "recompute",
}


def question_of(
    model: str,
    nodes: int = 1,
    gpus_per_node: int = 8,
    gpu: str = "h100",
    network: float = 50.0,
    fabric: Fabric = "shared",
    sequence: int = 4096,
    batch_tokens: str = "1M",
    tokens: str | None = None,
    recipe: str = "20",
    software: str = "nanotron",
    ep: int | None = None,
) -> Question:
    """The question that these words ask.

    network: GB/s between nodes, a GPU.  ep: ranks that share a layer's experts out.

    The batch is the whole number of sequences nearest to the tokens asked for.
    """
    cluster = Cluster.of(gpu, nodes, gpus_per_node, network * 1e9, fabric)
    batch = round(number_of_tokens(batch_tokens) / sequence)
    if batch < 1:
        raise ValueError(f"a batch of {batch_tokens} tokens holds no sequence of {sequence}: make it larger")
    job = Job(model_named(model), sequence, batch, recipe_named(recipe))
    whole = training_tokens(tokens) if tokens else 0.0
    return Question(job, cluster, SOFTWARE[software], whole, ep)


def model_named(text: str) -> ModelConfig:
    """A preset, or the shape in a config.json or a folder with one.

    A preset's case, dashes and blanks do not matter, and the start of one name is enough: "deepseek-v3".
    """
    path = Path(text).expanduser()
    if path.is_dir() and (path / "config.json").exists():
        return read_config(path / "config.json")
    if path.suffix == ".json" or path.is_file():
        return read_config(path)
    wanted = _plain(text)
    starts = [name for name in PRESETS if wanted and _plain(name).startswith(wanted)]
    named = [name for name in starts if _plain(name) == wanted] or starts
    if len(named) > 1:
        raise ValueError(f"{text!r} may be any of {', '.join(named)}: say more of the name")
    if not named:
        raise ValueError(f"no model {text!r}: give the path of a config.json, or one of {', '.join(PRESETS)}")
    return PRESETS[named[0]]


def recipe_named(text: str) -> Recipe:
    """A precision recipe by the start of its name, or by its bytes a parameter: "20"."""
    for name, recipe in RECIPES.items():
        if name.lower().startswith(text.lower()) or (
            text == str(recipe.bytes_per_parameter) and name.startswith("mixed AdamW")
        ):
            return recipe
    raise ValueError(f"no recipe {text!r}; there are {', '.join(RECIPES)}")


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower())


def number_of_tokens(text: str) -> int:
    """Tokens of a step: "4M" is 4 x 2^20, as batches are counted; a plain number is itself."""
    return int(_scaled(text, _BINARY))


def training_tokens(text: str) -> float:
    """Tokens of a training: "1T" is 10^12."""
    return _scaled(text, _DECIMAL)


def _scaled(text: str, scales: dict[str, int]) -> float:
    found = re.fullmatch(r"([\d_]*\.?\d+)\s*([A-Za-z]?)", text.strip())
    if not found or found[2].upper() not in scales or float(found[1]) <= 0:
        letters = ", ".join(letter for letter in scales if letter)
        raise ValueError(
            f"{text!r} is no number of tokens: expected a number, with {letters} after it or not"
        )
    return float(found[1].replace("_", "")) * scales[found[2].upper()]


def plan_named(text: str) -> Plan:
    """A plan like "16,2,4" or "16,2,4,mb=2,zero=1,v=2,cp=1,ep=8,recompute=full".

    Without names the numbers are dp, tp, pp, micro-batch, ZeRO stage, chunks, cp and ep, as many as are
    given.
    """
    fields: dict[str, Any] = {}
    for place, part in enumerate(text.split(",")):
        name, given, value = part.strip().partition("=")
        if not given:
            name, value = (_POSITIONS[place] if place < len(_POSITIONS) else "?"), name
        if name not in _FIELDS:
            raise ValueError(f"{part!r} in the plan {text!r}: names are {', '.join(_FIELDS)}")
        fields[_FIELDS[name]] = value if name == "recompute" else _whole(value, part, text)
    if not {"data", "tensor", "pipeline"} <= set(fields):
        raise ValueError(f"the plan {text!r} needs dp, tp and pp at least, as in 16,2,4")
    if fields.get("recompute", "none") not in ("none", "selective", "full"):
        raise ValueError(f"recompute is none, selective or full, not {fields['recompute']!r}")
    return Plan(**fields)


def _whole(value: str, part: str, text: str) -> int:
    if not value.strip().isdigit():
        raise ValueError(f"{part!r} in the plan {text!r}: expected a whole number")
    return int(value)
