"""Lesson 09: parts are hidden from lessons that build them, a trainer takes anybody's, its table is true."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import labkit
from autograder.grade.evidence import Baseline
from autograder.grade.harness import Harness, hidden_files
from autograder.grade.reference import REPOSITORY, reference_cells, solved_cells
from autograder.sandbox.choice import find_sandbox
from autograder.selftest.alternatives import alternatives
from labkit.checks import registry
from labkit.checks.hidden import hidden_modules, hiding
from labkit.checks.lesson_09.reasons import stands_in
from labkit.checks.source.submission import Cell, collect
from labkit.model import Transformer, explicit_attention, gpt
from labkit.parallel import library_parts
from labkit.parallel.own import own_parts

BUILDS = {
    "03": "03.average-gradients",
    "04": "04.run-schedule",
    "06": "06.copy-to-tensor-parallel",
    "07": "07.tensor-parallel-block",
}

READS = """
import glob, marshal, os

def answers():
    found = glob.glob("/course/labkit/parallel/**", recursive=True)
    found = [path for path in found if os.path.isfile(path) and os.path.getsize(path)]
    try:
        import labkit.parallel.parts
        found.append("imported")
    except ImportError:
        pass
    return found

def average_gradients(module, group):
    raise RuntimeError(f"found {answers()}")
"""


@pytest.mark.parametrize(
    ("reason", "names"),
    [
        ("a width of 14336, not by 8", True),
        ("a width of 14,336, not by 8", True),
        ("width,t: 14336,8", True),
        ("width,t: 8,14336", True),
        ("a width of 114,336", False),
        ("a width of 14,336,000", False),
        ("a width of 14336.5", False),
        ("a width of 1433", False),
    ],
)
def test_a_reason_names_a_number_however_it_is_written(reason: str, names: bool) -> None:
    assert stands_in("14336", reason) is names


@pytest.mark.parametrize("lesson", BUILDS)
def test_the_parts_are_hidden_where_they_are_built(lesson: str) -> None:
    assert "labkit.parallel" in hidden_modules(lesson)
    with hiding(hidden_modules(lesson)), pytest.raises(ImportError, match="holds an answer of this lesson"):
        import labkit.parallel.data  # noqa: F401


def test_the_parts_are_there_where_they_are_put_together() -> None:
    assert "labkit.parallel" not in hidden_modules("09")
    assert "labkit.theory.planning" in hidden_modules("09")


@pytest.mark.days
@pytest.mark.sandbox
@pytest.mark.timeout(120)
def test_a_sandbox_of_a_lesson_that_builds_them_has_no_parts() -> None:
    exercise = registry.exercise("03.average-gradients")
    hides = sorted({name for e in registry.exercises("03") for name in e.hides})
    cases = [case for case in exercise.cases(1) if case.ranks == 2][:1]
    with Harness(find_sandbox(), hides) as harness:
        graded = harness.grade(exercise, [Cell("cell 1", READS, exercise.id)], 3, cases)
    assert graded.report.points == 0
    assert "found []" in repr(graded.report), graded.report


@pytest.mark.days
@pytest.mark.sandbox
@pytest.mark.timeout(120)
def test_groups_that_are_made_more_than_once_hold_nothing_back() -> None:
    """They cost bytes that the reference does not send, and no call that is recorded."""
    exercise = registry.exercise("09.rank-grid")
    cases = [case for case in exercise.cases(1) if case.name == "two axes"]
    (answer,) = (one for one in alternatives("09") if one.name == "rank-grid-a-group-a-rank")
    with Harness(find_sandbox(), hidden_files([exercise])) as harness:
        baseline = Baseline.of(harness.grade(exercise, solved_cells("09"), 1, cases).jobs)
        graded = harness.grade(exercise, answer.cells, 1, cases)
        harness.cross_check(graded, exercise, 1, baseline)
    assert graded.report.stops == []
    assert graded.flags == []


# -- anybody's parts


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Lessons 03, 04 and 07 as somebody who solved them has saved them."""
    folder, found = tmp_path_factory.mktemp("solved"), {}
    for lesson in ("03", "04", "07"):
        cells = [
            {"cell_type": "code", "source": c.source, "metadata": {}, "outputs": [], "execution_count": None}
            for c in solved_cells(lesson)
        ]
        path = folder / f"{lesson}.ipynb"
        path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
        found[lesson] = str(path)
    return found


def test_parts_come_from_the_notebooks_that_are_named(notebooks: dict[str, str]) -> None:
    some = own_parts({"04": notebooks["04"]})
    assert some.run_schedule.__module__ == "notebook"
    assert some.block is library_parts().block
    every = own_parts(notebooks)
    assert {value.__module__ for value in vars(every).values()} == {"notebook"}


def test_what_is_missing_is_named(notebooks: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"03\.ipynb does not define one_f_one_b_schedule, run_schedule"):
        own_parts({"04": notebooks["03"]})
    with pytest.raises(ValueError, match="lesson 05 has no part here; lessons 03, 04, 07 have"):
        own_parts({"05": notebooks["03"]})


def train(notebooks: dict[str, str], group: dist.ProcessGroup) -> list[float]:
    """Two steps on 1 x 2 x 2, with dropout, with the parts of these notebooks."""
    trainer = collect(reference_cells("09"), "09.train-3d", ["GPT3D"]).load().GPT3D
    torch.manual_seed(3)
    config = gpt(2, 16, 4, vocabulary=30, max_sequence=8, dropout=0.2)
    model = Transformer(config, explicit_attention).double()
    rows = torch.randint(30, (2, 5, 9), generator=torch.Generator().manual_seed(5))
    made = trainer(model, {"dp": 1, "pp": 2, "tp": 2}, ("pp", "dp", "tp"), group, 7, own_parts(notebooks))
    return [made.step(step[:, :-1], step[:, 1:], 3, 0.1, 1.0)[0].item() for step in rows]


@pytest.mark.days
def test_solved_notebooks_train_as_the_library_does(notebooks: dict[str, str]) -> None:
    """Also with dropout: the library's streams are lesson 07's."""
    library = labkit.launch(train, {}, ranks=4, backend="gloo", timeout=120).results
    own = labkit.launch(train, notebooks, ranks=4, backend="gloo", timeout=120).results
    assert own[0] == pytest.approx(library[0], rel=1e-12)
    assert library[0] == library[3]


# -- the table of measured runs


def measured() -> Iterator[dict[str, str]]:
    path = REPOSITORY / "benchmarks" / "data" / "measured_configurations.csv"
    with path.open(encoding="utf-8") as lines:
        yield from (row for row in csv.DictReader(lines) if row["status"] == "ok")


def test_the_lessons_table_is_the_measured_runs() -> None:
    best = collect(reference_cells("09"), "", ["BEST"]).load().BEST
    runs, groups = list(measured()), {(r["model"], int(r["nodes"])) for r in measured()}
    assert {(row[0], row[1]) for row in best} == groups
    for model, nodes, plan, tokens, *others in best:
        group = [r for r in runs if (r["model"], int(r["nodes"])) == (model, nodes)]
        top = max(group, key=lambda r: float(r["tok_s_gpu"]))
        assert plan == tuple(int(top[name]) for name in ("dp", "tp", "pp", "mbs", "zero"))
        kinds = (lambda r: r["tp"] == "8", lambda r: int(r["tp"]) > 8, lambda r: int(r["pp"]) > 1)
        found = [max((float(r["tok_s_gpu"]) for r in group if kind(r)), default=None) for kind in kinds]
        assert [tokens, *others] == [float(top["tok_s_gpu"]), *found]
