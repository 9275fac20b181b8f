"""Trains with the student's trainer on a rank, and notes what it does: rank side of `09.train-3d`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import JSON, Case
from labkit.checks.lesson_09.handed_parts import counted_parts, watched_parts
from labkit.checks.lesson_09.imports import import_what_optimizers_need
from labkit.checks.lesson_09.masks import DROPPED, OF_ANOTHER_SEED, Entered, answer_dropped, noting_block
from labkit.checks.lesson_09.training_job import (
    REPEATS,
    asked_in,
    larger_case,
    larger_inputs,
    plain_model,
    rows_in,
    steps_of,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes
from labkit.checks.shared.dropped import note_dropped
from labkit.checks.shared.held import bytes_left
from labkit.checks.shared.holding import Holding, held_since, holding, memory_since
from labkit.checks.shared.leaving import numbers_given
from labkit.checks.shared.split import loaded, under
from labkit.checks.shared.worked import Worked
from labkit.model import Transformer

# Grids that seeds are asked for beside the case's own: with as many stages as replicas one base does for both
OTHER_SIZES = ({"dp": 2, "pp": 4, "tp": 2}, {"dp": 3, "pp": 2, "tp": 1})
LARGE_SIZES = ({"dp": 128, "pp": 2, "tp": 1}, {"dp": 2, "pp": 64, "tp": 1})
SEEDS = (*range(64), 100, 128, 1000, 1024, 4096, 8192, 10_000, 16_384, 65_536)  # that somebody may start from
FEW_SEEDS = tuple(range(4))  # so few numbers in all that those of a 32-bit hash do not meet by chance


def _whole(rank: Rank) -> Transformer:
    """The model as this rank is handed it."""
    model = plain_model(rank.case).to(rank.device)
    loaded(model, under("full.", rank.inputs))
    return model


def _trainer(rank: Rank, full: Transformer, seed: int, **more: Any) -> Any:
    """The student's trainer of a model."""
    sizes, order = dict(rank.params["sizes"]), tuple(rank.params["order"])
    return rank.student.GPT3D(full, sizes, order, rank.group, seed, **more)


def train(rank: Rank, noted: Entered | None = None, **more: Any) -> Any:
    """As `_steps` and `_answer`; returns the trainer. Facts, of a trainer whose model nobody else keeps:
    held_bytes, and what `_note_kept` notes. noted: what parts that stand in for others keep.
    """
    import_what_optimizers_need()
    before = holding()
    with numbers_given() as given:
        trainer = _trainer(rank, _whole(rank), rank.case.seed, **more)
    rank.fact("held_bytes", held_since(before) + given.kept_bytes)
    found = _steps(rank, trainer, _rows(rank))
    _note_kept(rank, trainer, before, noted)
    _answer(rank, trainer, found)
    return trainer


def train_larger(rank: Rank) -> None:
    """As `train`. Facts, where the case says what is `larger`: kept_bytes, what that training leaves behind,
    gradients aside. Answers: larger_losses.TIME, of all its steps.
    """
    train(rank)
    if "larger" in rank.params:
        larger = larger_case(rank.case)
        rank.fact("kept_bytes", min(_kept(rank, larger, time) for time in range(REPEATS)))


def _kept(rank: Rank, case: Case, time: int) -> int:
    """Bytes that all steps of a new trainer leave behind. Answers their losses."""
    sizes, full, found = dict(case.params["sizes"]), plain_model(case).to(rank.device), list[float]()
    given = {name: tensor.to(rank.device) for name, tensor in larger_inputs(case, time).items()}
    loaded(full, under("full.", given))
    trainer = rank.student.GPT3D(full, sizes, tuple(case.params["order"]), rank.group, case.seed)

    def steps() -> Any:
        for step in range(steps_of(case)):
            rows = (given[name][step].clone() for name in ("ids", "targets"))
            loss, _ = trainer.step(*rows, *asked_in(case, step))
            found.append(float(loss))
        trainer.stage.zero_grad()
        return trainer

    kept = bytes_left(steps)
    rank.answer(f"larger_losses.{time}", torch.tensor(found, dtype=torch.float64))
    return kept


def train_beside(rank: Rank) -> None:
    """As `train`, with parts that are handed over. Facts: changed, what of the model and the rows that were
    handed over; used, how often each of those parts was called; under_way, how many micro-batches each
    schedule that was run keeps at most.
    """
    import_what_optimizers_need()
    before = holding()
    full, used, under_way, rows = _whole(rank), Counter[str](), list[int](), _rows(rank)
    as_it_was = _seen_of(full)
    trainer = _trainer(rank, full, rank.case.seed, parts=counted_parts(used, under_way))
    found = _steps(rank, trainer, rows)
    rank.fact("used", dict(used))
    rank.fact("under_way", list[JSON](under_way))
    changed = _changed(as_it_was, _seen_of(full))
    for name, handed in _rows(rank).items():
        changed += [name] * (not all(map(torch.equal, handed, rows[name])))
    rank.fact("changed", sorted(changed)[:5])
    del full, rows, as_it_was  # what is there from now on, the trainer keeps
    _note_kept(rank, trainer, before)
    _answer(rank, trainer, found)


def _changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Names that are in one alone, or stand for other numbers."""
    both = before.keys() & after.keys()
    return [*(before.keys() ^ after.keys()), *(name for name in both if not before[name].equal(after[name]))]


def _seen_of(full: Transformer) -> dict[str, Tensor]:
    """Parameters, which of them learn, and which modules are in training, by name."""
    found = {name: parameter.detach().clone() for name, parameter in full.named_parameters()}
    for name, parameter in full.named_parameters():
        found[f"requires_grad of {name}"] = torch.tensor(parameter.requires_grad)
    for name, module in full.named_modules():
        found[f"training of {name or 'the model'}"] = torch.tensor(module.training)
    return found


def _rows(rank: Rank) -> dict[str, list[Tensor]]:
    """ids and targets of each step, in memory of their own."""
    steps = range(steps_of(rank.case))
    return {
        name: [rows_in(rank.case, step, rank.inputs[name][step]).clone() for step in steps]
        for name in ("ids", "targets")
    }


def _steps(rank: Rank, model: Any, rows: Mapping[str, list[Tensor]]) -> list[tuple[Any, Any]]:
    """All steps; returns what each gave. Recording: each step. Fact: products, operations of each one's
    matrix products.
    """
    found, products = list[tuple[Any, Any]](), list[JSON]()
    for step in range(steps_of(rank.case)):
        asked = asked_in(rank.case, step)
        with rank.recording("step"), Worked() as worked:
            loss, norm = model.step(rows["ids"][step], rows["targets"][step], *asked)
        found.append((loss, norm))
        products.append(worked.products)
    rank.fact("products", products)
    return found


def _note_kept(rank: Rank, model: Any, before: Holding, noted: Entered | None = None) -> None:
    """Fact: bytes_after_steps, what is held that was not before, gradients and what is `noted` aside."""
    model.stage.zero_grad()
    ours = sum(nbytes(tensor) for calls in (noted or {}).values() for tensor in calls)
    rank.fact("bytes_after_steps", memory_since(before) - ours)


def _answer(rank: Rank, model: Any, found: Sequence[tuple[Any, Any]]) -> None:
    """Answers, when all steps are over: loss.STEP, norm.STEP, and trained.NAME of what the stage holds."""
    for step, (loss, norm) in enumerate(found):
        rank.answer(f"loss.{step}", loss)
        rank.answer(f"norm.{step}", norm)
    for name, tensor in model.to_full().items():
        rank.answer(f"trained.{name}", tensor)


def train_with_dropout(rank: Rank) -> None:
    """As `train`, each rank's default generator in another state. Facts: streams, as they were made;
    streams of another seed, those of a trainer that makes one step; seeds, what stream_seed makes of many, a
    list for each grid; drops_in_eval, whether the first stage does. Answers there: those of `note_dropped`,
    and what is dropped in the steps, of both seeds.
    """
    made, entered = list[dict[str, Any]](), Entered()
    torch.manual_seed(100 + rank.rank)
    trainer = train(rank, entered, parts=watched_parts(made, block=noting_block(entered)))
    rank.fact("streams", deepcopy(made))  # as they are now
    first = trainer.stage.tokens is not None
    if first:
        answer_dropped(rank, DROPPED, trainer.stage, entered)
    rank.fact("drops_in_eval", first and _gives_two_answers(rank, trainer.stage.eval()))
    if first:
        once = partial(trainer.stage, rank.inputs["ids"][0])
        note_dropped(rank, trainer.stage, rank.params["dropout"], once)
    for name, seed in (("another seed", 0 if rank.case.seed else 1), ("a second trainer", rank.case.seed)):
        others, entered = list[dict[str, Any]](), Entered()
        parts = watched_parts(others, block=noting_block(entered))
        trainer = _trainer(rank, _whole(rank), seed, parts=parts)
        rank.fact(f"streams of {name}", deepcopy(others))
        if name == "another seed":
            trainer.step(rank.inputs["ids"][0], rank.inputs["targets"][0], *asked_in(rank.case, 0))
            if first:
                answer_dropped(rank, OF_ANOTHER_SEED, trainer.stage, entered)
    of_grids = [
        _seeds(rank.student.stream_seed, sizes, SEEDS) for sizes in (rank.params["sizes"], *OTHER_SIZES)
    ]
    of_grids += [_seeds(rank.student.stream_seed, sizes, FEW_SEEDS) for sizes in LARGE_SIZES]
    rank.fact("seeds", of_grids)


def _gives_two_answers(rank: Rank, stage: Any) -> bool:
    """Whether two forwards of the same ids differ."""
    with torch.no_grad():
        one, other = (stage(rank.inputs["ids"][0].clone()) for _ in range(2))
    return not one.equal(other)


def _seeds(stream_seed: Any, sizes: Mapping[str, int], seeds: Iterable[int]) -> list[int]:
    """What it makes of each of these seeds and every place, tp 0 alone."""
    places = product(range(sizes["dp"]), range(sizes["pp"]))
    at = [{"dp": dp, "pp": pp, "tp": 0} for dp, pp in places]
    return [int(stream_seed(seed, dict(place), dict(sizes))) for seed in seeds for place in at]
