"""References earn everything, stubs and empty notebooks nothing, every wrong answer loses what it breaks."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autograder.cli import main
from autograder.grade import reference
from autograder.grade.harness import Harness
from autograder.grade.reference import graded_lessons, lesson_source, reference_cells, solutions_folder
from autograder.sandbox.choice import find_sandbox
from autograder.selftest import trials as selftest
from autograder.selftest import wrong_answers as wrong
from autograder.selftest.trials import NoWrongAnswers, Row, kill_table, run_trials, trials
from autograder.selftest.wrong_answers import WrongAnswerError, refresh, wrong_answers
from labkit.checks import registry

LESSON = "06"


@pytest.mark.days
@pytest.mark.sandbox
@pytest.mark.timeout(300)
def test_one_exercise_in_the_sandbox() -> None:
    """All trials of the first exercise; tests/lessons tries every wrong answer of every lesson, without a
    sandbox.
    """
    first = registry.exercises(LESSON)[0]
    wanted = [trial for trial in trials(LESSON, [1]) if trial.exercise == first]
    assert len([t for t in wanted if t.says]) >= 5
    honest, wrong = [t for t in wanted if not t.says], [t for t in wanted if t.says]
    rows = list(run_trials([*honest, *wrong[:6]], find_sandbox(), 2))
    assert all(row.ok for row in rows), "\n".join(kill_table(rows))
    _a_survivor_is_seen(rows)


def _a_survivor_is_seen(rows: list[Row]) -> None:
    """The table says FAIL of a wrong answer that keeps its points: one that a reference stands in for."""
    mistake = next(row for row in rows if row.trial.says)
    passed = next(r for r in rows if r.trial.must_fail is None and r.trial.exercise == mistake.trial.exercise)
    survivor = dataclasses.replace(mistake, graded=passed.graded)
    assert not survivor.ok
    *before, last, counted = kill_table([survivor, *rows])
    assert last.startswith("FAIL")
    assert all(line.startswith("ok") for line in before)
    assert counted.endswith(f"{len(rows)} of {len(rows) + 1} trials as they must be")


@pytest.mark.sandbox
def test_a_harness_that_does_not_end_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = list[Harness](), list[Harness]()

    class Told(Harness):
        """Tells that it has ended; the last of three, which is the first to, with an error."""

        def __enter__(self) -> Harness:
            begun.append(self)
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            ended.append(self)
            if len(ended) == 1:
                raise OSError("its folder is in use")

    monkeypatch.setattr(selftest, "Harness", Told)
    empty = next(trial for trial in trials(LESSON, [1]) if trial.name == "empty notebook")
    with pytest.raises(OSError, match="in use"):
        list(run_trials([empty], find_sandbox(), 3))
    assert len(begun) == 3
    assert ended == begun[::-1]


@pytest.mark.sandbox
@pytest.mark.days(11)
def test_lessons_do_not_hide_from_each_other() -> None:
    """Lesson 01 is graded without labkit's own calculator, which lesson 04's checks need."""
    first = [next(t for t in trials(lesson, [1]) if t.must_fail is None) for lesson in ("01", "04")]
    assert [row.told for row in run_trials(first, find_sandbox(), 1)] == ["lost nothing"] * 2


@pytest.mark.parametrize("lesson", graded_lessons())
def test_every_wrong_answer_fits_its_reference(lesson: str) -> None:
    """Each applies, makes Python, breaks properties that exist, and is what `diff -u` shows."""
    cells = {cell.exercise: cell.source for cell in reference_cells(lesson)}
    found = wrong_answers(lesson)
    for answer in found:
        reference = cells[answer.exercise]
        source = answer.apply(reference)
        compile(source, answer.id, "exec")
        assert str(answer.against(reference, source)) == answer.path.read_text(encoding="utf-8")
        for name in answer.breaks:
            registry.exercise(answer.exercise).property(name)


def test_an_exercise_without_wrong_answers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    spared = registry.exercises(LESSON)[0].id
    monkeypatch.setattr(
        selftest, "wrong_answers", lambda lesson: [m for m in wrong_answers(lesson) if m.exercise != spared]
    )
    with pytest.raises(NoWrongAnswers, match=spared):
        trials(LESSON, [1])


def test_only_the_exercises_asked_for_are_tried() -> None:
    first = registry.exercises(LESSON)[0]
    assert {trial.exercise for trial in trials(LESSON, [1], [first.id])} == {first}


def test_a_diff_that_does_not_fit_is_named_with_the_line_it_expected() -> None:
    """Where its lines are gone, and where they have only moved."""
    answer = wrong_answers(LESSON)[0]
    reference = {cell.exercise: cell.source for cell in reference_cells(LESSON)}[answer.exercise]
    gone = next(line[1:] for line in answer.diff.splitlines()[2:] if line.startswith("-"))
    assert gone in reference
    for source in (reference.replace(gone, "    pass"), f"# a comment\n{reference}"):
        with pytest.raises(WrongAnswerError, match=rf"{answer.id}.*line \d+, .*does not match"):
            answer.apply(source)


@pytest.mark.parametrize(
    "text", ["no diff at all", "two\nlines\nbreaks: p\n\n--- a\n+++ b\n", "says\n--- a\n"]
)
def test_a_file_in_another_form_is_named(course: Path, text: str) -> None:
    (course / "wrong/copy-to-tensor-parallel/bad.diff").write_text(text)
    with pytest.raises(WrongAnswerError, match=r"bad\.diff"):
        wrong_answers(LESSON)


def test_why_a_wrong_answer_keeps_its_points_is_kept_with_it(course: Path) -> None:
    path = course / "wrong/copy-to-tensor-parallel/fair.diff"
    text = "says\nbreaks: input-gradients\nkeeps: because\n\n--- a\n+++ b"
    path.write_text(f"{text}\n")
    (read,) = (answer for answer in wrong_answers(LESSON) if answer.id == "fair")
    assert (read.breaks, read.keeps, str(read)) == (("input-gradients",), "because", f"{text}\n")


@pytest.mark.days
def test_a_wrong_answer_is_written_and_moves_with_its_reference(course: Path) -> None:
    """From a copy of the lesson's source, as its author would; then the reference gets a line above it."""
    source = course / "solutions" / f"{lesson_source(LESSON).name}.py"
    text, exercise = source.read_text(), "06.copy-to-tensor-parallel"
    source.write_text(text)
    edited = course / "edited.py"
    edited.write_text(text.replace("        ctx.group = group\n        return x\n", "        return x\n", 1))
    options = ("--from", edited, "--says", "forgets", "--breaks", "input-gradients")
    told = _run("wrong", "write", exercise, "no-group", *options)
    assert told.exit_code == 0, told.output
    (written,) = (answer for answer in wrong_answers(LESSON) if answer.id == "no-group")
    assert written.breaks == ("input-gradients",)
    assert "-        ctx.group = group" in written.diff.splitlines()

    source.write_text(text.replace("class CopyToTensorParallel", "# above\nclass CopyToTensorParallel"))
    lesson_source.cache_clear()
    moved, lost = refresh(LESSON)
    assert written.path in moved
    assert [told for told in lost if written.path.name in told] == []  # others may be about that very line
    (written,) = (answer for answer in wrong_answers(LESSON) if answer.id == "no-group")
    cell = next(c.source for c in lesson_source(LESSON).cells if c.options.get("exercise") == exercise)
    assert written.apply(cell) == cell.replace("        ctx.group = group\n", "", 1)

    source.write_text(text.replace("        ctx.group = group\n        return x\n", "        return x\n", 1))
    lesson_source.cache_clear()
    assert any("no-group.diff" in problem for problem in refresh(LESSON)[1])


def test_a_wrong_answer_changes_one_cell(course: Path) -> None:
    source = course / "solutions" / f"{lesson_source(LESSON).name}.py"
    options = ("--from", source, "--says", "nothing", "--breaks", "input-gradients")
    told = _run("wrong", "write", "06.copy-to-tensor-parallel", "none", *options)
    assert told.exit_code == 1
    assert "found one in none" in told.output


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Solutions and wrong answers of the lesson in a folder of their own."""
    shutil.copytree(solutions_folder(), tmp_path / "solutions")
    shutil.copytree(
        wrong.LESSONS / f"lesson_{LESSON}" / "wrong", tmp_path / "lessons" / f"lesson_{LESSON}" / "wrong"
    )
    (tmp_path / "wrong").symlink_to(tmp_path / "lessons" / f"lesson_{LESSON}" / "wrong")
    monkeypatch.setattr(wrong, "LESSONS", tmp_path / "lessons")
    monkeypatch.setattr(reference, "solutions_folder", lambda: tmp_path / "solutions")
    lesson_source.cache_clear()
    yield tmp_path
    lesson_source.cache_clear()


def _run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])
