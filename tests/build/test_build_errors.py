"""Each mistake in a lesson's source is told by file and line, and nothing is built."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_lesson

from labkit.build import LessonError, instructor_notebook, read_lesson
from labkit.checks.exercise import Exercise

EXERCISE = '# %% exercise="90.double-it" difficulty=2 minutes=15'
CHECK = '# %% check="90.double-it"\nlabkit.check("90.double-it", Doubler)\n'
BOARD = "# %% scoreboard=true\nlabkit.scoreboard()\n"


def line_of(text: str) -> int:
    return small_lesson.SOURCE[: small_lesson.SOURCE.index(text)].count("\n") + 1


MISTAKES = {
    "unknown exercise": (
        EXERCISE,
        EXERCISE.replace("double", "triple"),
        EXERCISE,
        "unknown exercise '90.triple-it'",
    ),
    "unknown check": (
        CHECK,
        CHECK.replace("double-it", "triple-it"),
        CHECK,
        "unknown exercise '90.triple-it'",
    ),
    "duplicated check": (BOARD, CHECK + "\n" + BOARD, BOARD, "a second time; the first is on line"),
    "missing check": (CHECK, "", EXERCISE, "no check for 90.double-it"),
    "misspelt check": (
        "labkit.check(",
        "labkit.chek(",
        CHECK,
        'expected `labkit.check("90.double-it", Doubler)`',
    ),
    "check of another name": (
        '-it", Doubler)',
        '-it", doubler)',
        CHECK,
        'expected `labkit.check("90.double-it", Doubler)`',
    ),
    "check not Python": (
        "labkit.check(",
        "labkit.check((",
        'labkit.check("90',
        "the check is not valid Python",
    ),
    "no solution": (
        "### BEGIN SOLUTION\n        return 2",
        "return 2",
        "        return 2 * x",
        "expected `### BEGIN",
    ),
    "unclosed": (
        "        return 2 * grad\n        ### END SOLUTION",
        "        return 2",
        EXERCISE,
        "has no `### END",
    ),
    "nested": ("return 2 * x", "### BEGIN SOLUTION", "        return 2 * x", "expected `### END SOLUTION`"),
    "sloppy mark": (
        "### BEGIN SOLUTION\n        return 2",
        "## BEGIN SOLUTION\n        return 2",
        "        ### BEGIN SOLUTION\n        return 2",
        "on a line of its own",
    ),
    "stray mark": ("your_guess = ...", "### BEGIN SOLUTION", "your_guess = ...", "without exercise="),
    "no difficulty": (" difficulty=2", "", EXERCISE, "expected difficulty=1..5"),
    "difficulty 9": ("difficulty=2", "difficulty=9", EXERCISE, "found 9"),
    "no minutes": (" minutes=15", "", EXERCISE, "expected minutes="),
    "typing error": ("exercise=", "excercise=", EXERCISE, "unknown cell option 'excercise'"),
    "other name": ("class Doubler", "class Tripler", EXERCISE, "must define Doubler"),
    "not Python": ("return 2 * grad", "return 2 *", "        return 2 * grad", "is not valid Python"),
    "no scoreboard": (" scoreboard=true", "", "# ---", "no cell with scoreboard=true"),
    "two scoreboards": (BOARD, BOARD + "\n" + BOARD, None, "a second scoreboard"),
    "early scoreboard": (
        BOARD,
        BOARD + "\n# %% [markdown]\n# More.\n",
        BOARD,
        "not the lesson's last cell",
    ),
    "no header": ("# lesson: {", "# lesso: {", "# ---", "expected `lesson: {number"),
    "not YAML": ('title: "Doubling"', 'title: "Doubling" twice', "# ---", "the header is not YAML"),
    "a list": ("# lesson: {", "# - lesson: {", "# ---", "expected `lesson: {number"),
    "a number of a tag": ('# %% predict="ranks"', '# %% tags=["a", 3]', "# ---", "Jupytext cannot read"),
    "minutes a word": ("minutes: 25}", 'minutes: "25"}', "# ---", "expected `lesson: {number"),
    "too few minutes": ("minutes: 25}", "minutes: 14}", "# ---", "its exercises 15 together"),
    "other number": ('number: "90"', 'number: "91"', "# ---", "the header says lesson '91'"),
    "raw cell": (
        '# %% predict="ranks"',
        "# %% [raw]",
        '# %% predict="ranks"',
        "expected a code or [markdown] cell",
    ),
    "misspelt kind": (
        '# %% predict="ranks"',
        "# %% [markdwn]",
        '# %% predict="ranks"',
        "found `# %% [markdwn]`",
    ),
    "a title": ('# %% predict="ranks"', "# %% A guess", '# %% predict="ranks"', "found `# %% A guess`"),
    "no quotes": ('predict="ranks"', "predict=ranks", '# %% predict="ranks"', "found `# %% predict=ranks`"),
    "no quotes, a letter": ('predict="ranks"', "predict=x", '# %% predict="ranks"', "found `# %% predict=x`"),
    "an answer to no guess": (
        '# %% reveals="ranks"',
        '# %% reveals="rank"',
        '# %% reveals="ranks"',
        'no cell before it has predict="rank"',
    ),
    "an answer in sight": (
        '# %% reveals="ranks"\nprint(2, your_guess)',
        '# %%\nprediction("ranks", your_guess, 2, "computed")',
        '# %% reveals="ranks"',
        'expected reveals="..."',
    ),
    "difficulty a word": ("difficulty=2", 'difficulty="2"', EXERCISE, "expected difficulty= a whole number"),
    "scoreboard a word": (
        "scoreboard=true",
        'scoreboard="yes"',
        "# %% scoreboard=true",
        "expected scoreboard= true or false",
    ),
    "begin too far left": (
        "        ### BEGIN SOLUTION\n        if grad",
        "    ### BEGIN SOLUTION\n        if grad",
        "        ### BEGIN SOLUTION\n        if grad",
        "found 4 spaces, and 8 before `if grad is None:`",
    ),
    "mark in a string": (
        "your_guess = ...",
        'your_guess = """\n# %% no\n"""',
        "# ---",
        "looks like a cell mark",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_by_file_and_line(name: str, tmp_path: Path) -> None:
    before, after, at, says = MISTAKES[name]
    assert small_lesson.SOURCE.count(before) >= 1
    path = small_lesson.write(tmp_path, small_lesson.SOURCE.replace(before, after, 1))
    with pytest.raises(LessonError) as caught:
        instructor_notebook(read_lesson(path), small_lesson.EXERCISES)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")
    if at is not None:
        assert caught.value.line == line_of(at)


def test_a_check_before_its_exercise(tmp_path: Path) -> None:
    moved = small_lesson.SOURCE.replace(CHECK, "").replace(EXERCISE, CHECK + "\n" + EXERCISE)
    with pytest.raises(LessonError, match=r'32: no cell with exercise="90\.double-it" before its check'):
        instructor_notebook(read_lesson(small_lesson.write(tmp_path, moved)), small_lesson.EXERCISES)


def test_an_exercise_of_the_checks_that_the_lesson_lacks(tmp_path: Path) -> None:
    exercises: tuple[Exercise, ...] = (*small_lesson.EXERCISES, small_lesson.exercise("90.halve-it"))
    with pytest.raises(LessonError, match=r'no cell with exercise="90\.halve-it"'):
        instructor_notebook(read_lesson(small_lesson.write(tmp_path)), exercises)


def test_a_mark_that_windows_editors_begin_a_file_with(tmp_path: Path) -> None:
    path = small_lesson.write(tmp_path)
    before = read_lesson(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_lesson(path) == before


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "90_doubling.py"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LessonError, match="cannot be read as UTF-8"):
        read_lesson(path)
