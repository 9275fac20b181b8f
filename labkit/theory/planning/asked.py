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
NEAR = 0.05  # of a batch
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
_RECIPES = {"nanotron": "20", "megatron": "18"}  # what each keeps, in bytes a parameter


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
    recipe: str | None = None,
    software: str = "nanotron",
    ep: int | None = None,
) -> Question:
    """The question that these words ask.

    network: GB/s between nodes, a GPU.  recipe: the software's own unless given.
    ep: ranks that share a layer's experts out.

    The batch is the tokens asked for. Where they are no whole number of sequences, it is one nearby that as
    many GPUs divide as can be.
    """
    if sequence < 1:
        raise ValueError(f"sequence must be 1 or more, got {sequence}")
    if software not in SOFTWARE:
        raise ValueError(f"no software {software!r}; there are {', '.join(SOFTWARE)}")
    cluster = Cluster.of(gpu, nodes, gpus_per_node, network * 1e9, fabric)
    batch = _sequences(number_of_tokens(batch_tokens), sequence, cluster.num_gpus)
    if batch < 1:
        raise ValueError(f"a batch of {batch_tokens} tokens holds no sequence of {sequence}: make it larger")
    job = Job(model_named(model), sequence, batch, recipe_named(recipe or _RECIPES[software]))
    whole = training_tokens(tokens) if tokens else 0.0
    return Question(job, cluster, SOFTWARE[software], whole, ep)


def _sequences(tokens: int, sequence: int, num_gpus: int) -> int:
    """175 sequences on 32 GPUs would leave no data parallelism to plan with: 176 do."""
    wanted = tokens / sequence
    if tokens % sequence == 0:
        return tokens // sequence
    degrees = (degree for degree in range(num_gpus, 0, -1) if num_gpus % degree == 0)
    near = (round(wanted / degree) * degree for degree in degrees)
    return next((batch for batch in near if abs(batch - wanted) <= NEAR * wanted), round(wanted))


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
        if (text and name.lower().startswith(text.lower())) or (
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
    found = re.fullmatch(r"(\d+(?:_\d+)*(?:\.\d+)?|\.\d+)\s*([A-Za-z]?)", text.strip(), re.ASCII)
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
        if _FIELDS[name] in fields:
            raise ValueError(f"{part!r} in the plan {text!r}: {name} is given twice")
        fields[_FIELDS[name]] = value if name == "recompute" else _whole(value, part, text)
    if not {"data", "tensor", "pipeline"} <= set(fields):
        raise ValueError(f"the plan {text!r} needs dp, tp and pp at least, as in 16,2,4")
    if fields.get("recompute", "none") not in ("none", "selective", "full"):
        raise ValueError(f"recompute is none, selective or full, not {fields['recompute']!r}")
    return Plan(**fields)


def _whole(value: str, part: str, text: str) -> int:
    if not re.fullmatch(r"\d+", value.strip(), re.ASCII):
        raise ValueError(f"{part!r} in the plan {text!r}: expected a whole number")
    return int(value)
