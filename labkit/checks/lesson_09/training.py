"""What `09.train-3d` must show: one training on a grid of ranks, equal to that of one process.

Each rank is handed the whole model with noise in all that other ranks hold, the rows of its own replica, and
ids and targets only where its stage may look at them: elsewhere numbers that the vocabulary does not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Exercise, Property, Run, every
from labkit.checks.lesson_09.given import HIDES, OWN_PARTS, OWN_PARTS_CAUSE, TORCHS_GRIDS
from labkit.checks.lesson_09.masks import (
    masks_alike_along_tensor,
    other_masks_each_time,
    other_masks_elsewhere,
)
from labkit.checks.lesson_09.rank_grid import GRID_ID, MEGATRON
from labkit.checks.lesson_09.training_job import plain_model, spot_of, steps_of
from labkit.checks.lesson_09.training_judges import (
    GridEvidence,
    agree_along_tensor,
    computes_its_part,
    drops_embeddings,
    holds_no_other,
    keeps_it_after_steps,
    keeps_it_while_training,
    keeps_its_stage,
    learns_where_measured,
    leaves_the_model,
    losses,
    norms,
    rests_in_eval,
    seeds_differ,
    seeds_of_many_runs,
    streams_by_tensor_group,
    tied_copies,
    uses_what_it_is_handed,
    weights,
    works_in_turn,
)
from labkit.checks.lesson_09.training_runs import train, train_beside, train_larger, train_with_dropout
from labkit.checks.lesson_09.training_traffic import sends_inside_groups
from labkit.checks.shared.split import numbers_taken, under

TRAIN_ID = "09.train-3d"
# What is trained where memory is measured: megabytes of weights for each rank, cut in three in all layers
LARGER: Mapping[str, Any] = {"sizes": {"dp": 1, "pp": 1, "tp": 3}, "layers": 2, "hidden": 240, "heads": 3}
UNEVEN: Mapping[str, Any] = {"rows": 5, "micro_batches": 2, "second": {"rows": 3, "sequence": 3}}
USUAL: Mapping[str, Any] = {
    "order": MEGATRON,
    "layers": 2,
    "hidden": 8,
    "heads": 4,
    "vocabulary": 12,
    "sequence": 4,
    "rows": 4,
    "micro_batches": 3,
    "tied": True,
    "dropout": 0.0,
    "max_norm": 0.5,
    "learning_rate": 0.1,
}


def grid_case(name: str, kind: str, dp: int, pp: int, tp: int, seed: int, **params: Any) -> Case:
    """A job of dp x pp x tp ranks. rows: of each replica. micro_batches: 2 or more, not all of one size.
    steps: 3 if nothing is said. last_max_norm: of the last step, where it is another one. larger: what is
    other in a training of a larger model besides. second: of the second step, rows and sequence, where it has
    fewer.
    """
    settings = {**USUAL, "sizes": {"dp": dp, "pp": pp, "tp": tp}, **params}
    settings["order"] = list(settings["order"])
    own = kind == "own-parts"
    return Case(name, dp * pp * tp, settings, seed, kind=kind, own_parts=own, timeout=60.0)


def _cases(seed: int) -> list[Case]:
    return [
        grid_case("dp 1, pp 1, tp 2", "other-grids", 1, 1, 2, seed, hidden=12, heads=2, learning_rate=0.3),
        grid_case("dp 1, pp 2, tp 2", "other-grids", 1, 2, 2, seed, last_max_norm=0.0),
        grid_case("dp 2, pp 1, tp 2", "other-grids", 2, 1, 2, seed, max_norm=math.inf),
        grid_case("dp 2, pp 2, tp 1", "other-grids", 2, 2, 1, seed),
        grid_case(
            "five layers on three stages", "three-stages", 1, 3, 1, seed, layers=5, rows=5, larger=LARGER
        ),
        grid_case("a vocabulary of 13", "uneven", 1, 2, 2, seed, vocabulary=13, **UNEVEN),
        grid_case("untied", "untied", 1, 2, 2, seed, tied=False),
        grid_case("untied on one stage", "untied", 1, 1, 2, seed, tied=False),
        grid_case("dp 2, pp 2, tp 2", "values", 2, 2, 2, seed),
        grid_case("dp 4, pp 1, tp 2", "other-grids", 4, 1, 2, seed, rows=3, micro_batches=2),
        grid_case("tp outermost", "other-orders", 2, 2, 2, seed, order=("tp", "dp", "pp")),
        grid_case("with dropout", "dropout", 2, 2, 2, seed, dropout=0.3),
        grid_case("in float32", "float32", 2, 2, 1, seed, dtype="float32"),
        grid_case("all parts your own", "own-parts", 2, 2, 1, seed),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Parameters, noise for each rank's copy of them, and rows for all steps: [steps, B, s]."""
    found: Inputs = {}
    for name, tensor in plain_model(case).named_parameters():
        scale = tensor.shape[-1] ** 0.5
        found[f"full.{name}"] = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) / scale
        noise = torch.randn(case.ranks, *tensor.shape, generator=generator, dtype=torch.float64)
        found[f"noise.{name}"] = noise
    rows = case.params["sizes"]["dp"] * case.params["rows"]
    for name in ("ids", "targets"):
        shape = (steps_of(case), rows, case.params["sequence"])
        found[name] = torch.randint(case.params["vocabulary"], shape, generator=generator)
        found[f"other {name}"] = _no_tokens(case, generator)
    return found


def _no_tokens(case: Case, generator: torch.Generator) -> Tensor:
    """For each rank, in the place of rows: numbers above the vocabulary, and below 0."""
    vocabulary = case.params["vocabulary"]
    shape = (case.ranks, steps_of(case), case.params["rows"], case.params["sequence"])
    above = torch.randint(vocabulary, 2 * vocabulary, shape, generator=generator)
    above[..., ::2] *= -1
    return above


def _hand(case: Case, inputs: Inputs, rank: int) -> Inputs:
    spot, full = spot_of(case, rank), under("full.", inputs)
    found: Inputs = {}
    for name, own in numbers_taken(full, spot.cut).items():
        found[f"full.{name}"] = torch.where(own, full[name], inputs[f"noise.{name}"][rank])
    looks = {"ids": spot.stage == 0, "targets": spot.stage == spot.num_stages - 1}
    for name, may_look in looks.items():
        own_rows = inputs[name].chunk(case.params["sizes"]["dp"], 1)[spot.replica]
        found[name] = own_rows if may_look else inputs[f"other {name}"][rank]
    return found


_TRAINED = Run(train, _inputs, _hand, GridEvidence)
_EQUAL = every(losses, norms, weights)
_OWN_PART = every(keeps_its_stage, keeps_it_after_steps, computes_its_part)
EXERCISE = Exercise(
    TRAIN_ID,
    "One training on three axes",
    ("GPT3D",),
    {
        "values": _TRAINED,
        "other-grids": Run(train_beside, _inputs, _hand, GridEvidence),
        "other-orders": _TRAINED,
        "uneven": _TRAINED,
        "three-stages": Run(train_larger, _inputs, _hand, GridEvidence),
        "untied": _TRAINED,
        "dropout": Run(train_with_dropout, _inputs, _hand, GridEvidence),
        "float32": _TRAINED,
        "own-parts": _TRAINED,
    },
    _cases,
    (
        Property(
            "losses",
            "numbers",
            2,
            "Every rank has the mean loss of the whole batch, in each of several steps.",
            "the loss of one replica, or of the last stage's ranks alone",
            {"values": losses},
        ),
        Property(
            "weights",
            "numbers",
            4,
            "After several steps every stage's weights are those of the whole model in one process.",
            "replicas that are averaged before the last backward",
            {"values": weights},
        ),
        Property(
            "tied-embedding",
            "numbers",
            2,
            "The table and its copy on the last stage stay one: both are the whole model's.",
            "each copy learns from its own use only",
            {"values": tied_copies},
        ),
        Property(
            "global-norm",
            "numbers",
            3,
            "The norm counts each number of the whole model once.",
            "whole parameters counted by every tensor-parallel rank, or a tied table by both of its stages",
            {"values": norms},
        ),
        Property(
            "other-grids",
            "numbers",
            3,
            "The same code does it on 1x2x2, 2x1x2, 2x2x1 and 4x1x2.",
            "a table that is the head too, where there is one stage",
            {"other-grids": _EQUAL},
        ),
        Property(
            "untied",
            "numbers",
            1,
            "So it does with a head of its own.",
            "the head's gradient summed with the table's, or a table that is the head on one stage",
            {"untied": _EQUAL},
        ),
        Property(
            "stored-parts",
            "mechanism",
            2,
            "A rank keeps its stage's blocks, cut over its tensor-parallel group, and nothing else; the model"
            " and the rows that it is handed stay as they are, and the parts that it is handed are used, the"
            " schedule in its order.",
            "the whole model was kept as an attribute, or a module of it is trained; or parts of the library"
            " where others are handed over; or all forwards first",
            {
                "values": _OWN_PART,
                "other-grids": every(
                    leaves_the_model,
                    uses_what_it_is_handed,
                    works_in_turn,
                    holds_no_other,
                    keeps_it_after_steps,
                    computes_its_part,
                ),
            },
            {
                **dict.fromkeys(("dropout", "float32", "other-orders", "uneven", "untied"), _OWN_PART),
                "three-stages": every(_OWN_PART, keeps_it_while_training, learns_where_measured),
            },
        ),
        Property(
            "traffic",
            "mechanism",
            3,
            "Gradients go once between replicas, activations once over each boundary, a tied table between"
            " both ends; outside of tp nothing else but single numbers, and those inside the axes' groups.",
            "an average after each micro-batch, or a table of zeros from the stages in between",
            {"values": sends_inside_groups, "three-stages": sends_inside_groups},
            dict.fromkeys(
                ("dropout", "float32", "other-grids", "other-orders", "uneven", "untied"), sends_inside_groups
            ),
        ),
        Property(
            "random-streams",
            "mechanism",
            2,
            "Tensor-parallel ranks draw from equally seeded streams, every replica and stage from others, and"
            " all from others with another seed.",
            "the seed that was handed over, on every rank; seeds that meet those of the next run, or do"
            " where there are more stages than replicas",
            {
                "dropout": every(
                    streams_by_tensor_group, seeds_differ, seeds_of_many_runs, other_masks_elsewhere
                )
            },
        ),
        Property(
            "dropout",
            "numbers",
            1,
            "With dropout, of the embeddings too, what tensor-parallel ranks have whole stays equal; in eval"
            " mode nothing is dropped.",
            "the embedding's dropout is left out, not drawn from the shared stream, or there in eval mode",
            {
                "dropout": every(
                    agree_along_tensor,
                    drops_embeddings,
                    other_masks_each_time,
                    masks_alike_along_tensor,
                    rests_in_eval,
                )
            },
        ),
        Property(
            "uneven",
            "robustness",
            2,
            "Layers, rows and a vocabulary that do not divide make no difference, nor does a step with fewer"
            " and shorter rows.",
            "micro-batches of different sizes weigh differently, or messages have the first step's length",
            {"uneven": _EQUAL, "three-stages": _EQUAL},
        ),
        Property(
            "other-orders",
            "robustness",
            1,
            "Nor does the order of the axes.",
            "ranks taken as neighbours along tp",
            {"other-orders": _EQUAL},
        ),
        Property(
            "float32",
            "robustness",
            1,
            "Nor the dtype of the model.",
            "messages of float64, whatever the weights are",
            {"float32": weights},
        ),
        Property("own-parts", "numbers", 1, OWN_PARTS, OWN_PARTS_CAUSE, {"own-parts": _EQUAL}),
    ),
    builds_on=(GRID_ID,),
    forbids=(
        *TORCHS_GRIDS,
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.utils.clip_grad_norm_",
        "torch.distributed.fsdp.fully_shard",
        "torch.distributed.pipelining.PipelineStage",
        "torch.distributed.tensor.parallel.parallelize_module",
    ),
    hides=HIDES,
)
