"""What wrong answers earn on all cases, which of those that keep most have a word said for them, and that a
run which was interrupted goes on where it was.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autograder.grade.harness import Graded
from autograder.grade.reference import all_cases, graded_submission
from autograder.selftest.kept import Kept, key_of
from autograder.selftest.outcomes import Outcome, Outcomes
from autograder.selftest.progress import told_now_and_then
from autograder.selftest.systematic import all_tried
from autograder.selftest.thorough import SPECIAL, fair, told, tried_anew
from autograder.selftest.trials import Row, Trial, trials
from autograder.selftest.variants import variants
from labkit.checks.judge import judge_exercise
from labkit.checks.practice import run_on_host
from labkit.checks.source.submission import Cell

EXERCISE = "00.bus-bandwidth"


def _row(trial: Trial) -> Row:
    """The trial graded on all cases of its exercise, which asks for numbers alone."""
    submission, own_parts = graded_submission(list(trial.cells), trial.exercise)
    cases = all_cases(trial.exercise, trial.seed)
    return Row(trial, Graded(judge_exercise(trial.exercise, cases, submission, own_parts, run_on_host)))


@pytest.fixture(scope="module")
def row() -> Row:
    """A wrong answer that loses something, and for which nothing is said."""
    return _row(replace(next(t for t in trials("00", [1], [EXERCISE]) if t.says), keeps=""))


def _without(row: Row, kind: str) -> Row:
    """The same, having lost one property alone: the first of a kind, at a hundredth of all points."""
    rows = [replace(r, passed=True, points=99.0, max_points=99.0) for r in row.graded.report.rows]
    at = next(i for i, r in enumerate(rows) if r.kind == kind)
    rows[at] = replace(rows[at], passed=False, points=0.0, max_points=1.0)
    return replace(row, graded=Graded(replace(row.graded.report, rows=rows)))


def _earned(row: Row) -> tuple[Trial, Outcome]:
    report = row.graded.report
    outcome = Outcome(
        EXERCISE, row.trial.name, "one", "", report.verdict, report.points, report.max_points, row.lost
    )
    return row.trial, outcome


def test_what_its_file_says_is_why(row: Row) -> None:
    trial, outcome = _earned(row)
    assert fair(replace(trial, keeps="it is nearly right"), outcome) == "it is nearly right"


def test_special_cases_have_points_of_their_own(row: Row) -> None:
    assert fair(*_earned(_without(row, "robustness"))) == SPECIAL
    assert fair(*_earned(_without(row, "numbers"))) == ""


def test_those_that_keep_most_come_last_and_are_counted(row: Row) -> None:
    unsaid = _without(row, "numbers")
    *lines, count = told([_earned(each) for each in (unsaid, row, _without(row, "robustness"))])
    assert [SPECIAL in line for line in lines].count(True) == 1
    assert SPECIAL not in lines[0]
    assert count.startswith("2 of 3 wrong answers keep more than 80%, 1 of them without a word why")


@pytest.mark.days
def test_what_is_on_record_is_not_tried_again(tmp_path: Path) -> None:
    """By another sandbox it is, and what failed is; what is no trial any more is dropped."""
    right, wrong, other = trials("00", [1], [EXERCISE])[:3]
    asked_too_much = replace(wrong, must_fail=None)
    wanted, tried, said = [right, asked_too_much, other], list[str](), list[str]()

    def run(left: list[Trial]) -> Iterator[Row]:
        for trial in left:
            tried.append(trial.name)
            yield _row(trial)

    def again(wanted: list[Trial], sandbox: str = "one") -> list[Row]:
        tried.clear()
        return list(tried_anew(wanted, Outcomes("00", sandbox, tmp_path), run, "trials", said.append))

    first = tried_anew(wanted, Outcomes("00", "one", tmp_path), run, "trials", said.append)
    assert [next(first).ok, next(first).ok] == [True, False]
    first.close()
    assert [row.ok for row in again(wanted)] == [False, True]
    assert tried == [wrong.name, other.name]
    assert "trials: 1 of 3 trials are on record" in said
    again([right], "another")
    assert tried == [right.name]
    again([other])
    again(wanted)
    assert tried == [right.name, wrong.name]
    again([right], "another")
    assert tried == []


def test_a_record_holds_for_the_code_that_is_run(tmp_path: Path) -> None:
    outcomes = Outcomes("00", "one", tmp_path)
    right = trials("00", [1], [EXERCISE])[0]
    outcomes.keep(_row(right))
    there = outcomes.of(right)
    assert there is not None
    assert (there.points, there.verdict, there.lost) == (3.0, "passed", [])

    def with_line(line: str) -> Trial:
        def longer(cell: Cell) -> Cell:
            return replace(cell, source=f"{cell.source}\n{line}") if cell.exercise == EXERCISE else cell

        return replace(right, cells=tuple(map(longer, right.cells)))

    assert outcomes.of(with_line("# a remark")) == there
    assert outcomes.of(with_line("def bus_bandwidth(*of):\n    return 0.0")) is None
    assert outcomes.of(replace(right, seed=2)) is None


@pytest.mark.days
@pytest.mark.timeout(120)
def test_edits_go_on_where_they_were_interrupted(tmp_path: Path) -> None:
    kept, exercise = Kept(tmp_path / "kept"), "00.bus-bandwidth"
    tried = all_tried(exercise, 1, kept)
    some = [next(tried) for _ in range(3)]
    tried.close()
    assert len(kept) >= 3
    before = len(Kept(kept.path))
    rest = list(all_tried(exercise, 1, Kept(kept.path)))
    assert {each.variant for each in some} <= {each.variant for each in rest[:before]}
    assert [each for each in rest if each.variant == some[0].variant] == some[:1]
    assert {each.variant for each in rest} == set(variants(exercise))


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "there" / "kept")
    for number in range(3):
        kept.add(key_of("number", number), number)
    kept.path.write_bytes(kept.path.read_bytes()[:-4])
    again = Kept(kept.path)
    assert [again.get(key_of("number", n), int) for n in range(3)] == [0, 1, None]
    assert again.get(key_of("number", 0), str) is None
    again.clear()
    assert len(Kept(kept.path)) == 0


def test_how_far_a_run_is_is_told() -> None:
    said = list[str]()
    assert list(told_now_and_then(iter("abc"), 3, "letters", said.append, every=0.0)) == ["a", "b", "c"]
    assert [line.partition(" in ")[0] for line in said[:3]] == [f"letters: {n} of 3" for n in (1, 2, 3)]
    assert said[3].startswith("letters: 3 of 3 done")


@pytest.mark.days
def test_where_there_is_no_sandbox_it_says_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autograder", "thorough", "--lesson", "00"]
    bare = {**os.environ, "PATH": str(tmp_path)}
    tried = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=60)
    assert tried.returncode == 1
    assert "apt install bubblewrap" in tried.stderr
    assert "Traceback" not in tried.stderr
