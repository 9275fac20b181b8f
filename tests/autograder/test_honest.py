"""Right answers with odd habits, graded: they keep their points, and nothing is held back."""

from __future__ import annotations

import pytest
from conftest import F_ID, SEED, solution

from autograder.grade.evidence import Baseline
from autograder.grade.harness import Harness
from labkit.checks.case import Case
from labkit.checks.exercise import Exercise
from labkit.checks.source.submission import Cell

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(200)]

# What is done in backward, before what the reference does there; and cells above it.
HABITS: dict[str, tuple[str, list[str]]] = {
    "prints a hundred thousand lines": ("print('\\n'.join(map(str, range(100_000))))", []),
    "sets precision, threads and seeds for all": (
        "torch.set_default_dtype(torch.float64); torch.set_num_threads(1); torch.manual_seed(7)",
        [
            "import torch\ntorch.set_num_threads(2)\ntorch.manual_seed(0)",
            "torch.use_deterministic_algorithms(True)",
        ],
    ),
    "has warnings be errors": ("warnings.simplefilter('error')", ["import warnings"]),
    "leaves a thread running": (
        "threading.Thread(target=time.sleep, args=(1000,)).start()",
        ["import threading, time"],
    ),
    "draws": (
        "plt.figure(); plt.plot([1, 2]); plt.show()",
        ["import matplotlib.pyplot as plt\nplt.rcParams['figure.dpi'] = 90\nplt.plot([1, 2])"],
    ),
    "uses labkit, times and magics": (
        "K; theory",
        [
            "%load_ext autoreload\n%autoreload 2",
            "from labkit import *\nfrom labkit import theory",
            "%%time\nK = 2",
        ],
    ),
    "counts its calls": (
        "CALLS['backward'] = CALLS.get('backward', 0) + 1",
        ["CALLS = {}\nCALLS['forward'] = 0"],
    ),
    "catches what goes wrong": (
        "list(map(str, [1])) if not_there is None else 1 / 0",
        ["try:\n    import not_there\nexcept ImportError:\n    print('not here')\n    not_there = None"],
    ),
}


@pytest.fixture(scope="module")
def baseline(harness: Harness, f_exercise: Exercise, two_ranks: list[Case]) -> Baseline:
    """What the reference sends in these cases."""
    return Baseline.of(harness.grade(f_exercise, [Cell("cell 1", solution(F_ID))], SEED, two_ranks).jobs)


@pytest.mark.days
@pytest.mark.parametrize("habit", HABITS)
def test_odd_habits_cost_nothing(
    habit: str, harness: Harness, f_exercise: Exercise, two_ranks: list[Case], baseline: Baseline
) -> None:
    does, above = HABITS[habit]
    head, backward, rest = solution(F_ID).partition("    def backward(")
    line, end, body = rest.partition("### BEGIN SOLUTION\n")
    source = f"{head}{backward}{line}{end}        {does}\n{body}"
    cells = [Cell(f"cell {n}", text) for n, text in enumerate([*above, source], 1)]
    graded = harness.grade(f_exercise, cells, SEED, two_ranks)
    harness.cross_check(graded, f_exercise, SEED, baseline)
    assert graded.report.stops == []
    for name in ("forward-values", "input-gradients", "communication"):
        assert graded.report.row(name).passed, graded.report
    assert graded.held == []
