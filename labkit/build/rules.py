"""What must hold between a lesson's cells and the exercises its checks define, before anything is built."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from labkit.build.markup import Cell, Lesson, LessonError
from labkit.checks.exercise import Exercise

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"

_COMPUTED = re.compile(r"""^prediction\((?s:.*)"computed"\s*\)$""", re.MULTILINE)


def check_lesson(lesson: Lesson, exercises: Sequence[Exercise]) -> None:
    """Raise LessonError, naming file and line, at the first thing that would make a wrong notebook."""
    known = {exercise.id: exercise for exercise in exercises}
    for option in ("exercise", "check"):
        _check_ids(lesson, option, known)
    for cell in lesson.cells:
        _check_solution_region(lesson, cell)
        if "exercise" in cell.options:
            _check_exercise_cell(lesson, cell, known[cell.options["exercise"]])
        if "check" in cell.options:
            _check_check_cell(lesson, cell, known[cell.options["check"]])
    _check_pairs(lesson, known)
    _check_guesses(lesson)
    _check_minutes(lesson)
    _check_scoreboard(lesson)


def stub_line(exercise_id: str) -> str:
    """What stands in the released notebook where the solution was."""
    return f'raise NotImplementedError("{exercise_id}: not written yet")'


def _check_ids(lesson: Lesson, option: str, known: dict[str, Exercise]) -> None:
    first: dict[str, int] = {}
    for cell in lesson.cells:
        if option not in cell.options:
            continue
        exercise_id = cell.options[option]
        if exercise_id not in known:
            there_are = ", ".join(known) or "none"
            raise lesson.error(
                cell, f"unknown exercise {exercise_id!r}; lesson {lesson.number} has checks for: {there_are}"
            )
        if exercise_id in first:
            raise lesson.error(
                cell, f'{option}="{exercise_id}" a second time; the first is on line {first[exercise_id]}'
            )
        if cell.kind != "code":
            raise lesson.error(cell, f'{option}="{exercise_id}" belongs on a code cell')
        first[exercise_id] = cell.line


def _check_solution_region(lesson: Lesson, cell: Cell) -> None:
    """Solution regions are balanced, not nested, and only in exercise cells."""
    inside = False
    lines = cell.source.splitlines()
    for offset, line in enumerate(lines, 1):
        begins, ends = "BEGIN SOLUTION" in line, "END SOLUTION" in line
        if not begins and not ends:
            continue
        here = Cell(cell.kind, line, cell.line + offset)
        if "exercise" not in cell.options:
            raise lesson.error(here, f'a solution mark in a cell without exercise="{lesson.number}...."')
        if line.strip() != (BEGIN if begins else END) or begins == inside:
            expected = END if inside else BEGIN
            raise lesson.error(here, f"expected `{expected}` on a line of its own, found `{line.strip()}`")
        if begins:
            _check_indent(lesson, here, lines[offset:])
        inside = begins
    if inside:
        raise lesson.error(cell, f"a `{BEGIN}` in this cell has no `{END}`")


def _check_indent(lesson: Lesson, begin: Cell, after: Sequence[str]) -> None:
    """The mark stands where the solution's first line does: the stub's `raise` takes that line's place."""
    first = next((line for line in after if line.strip()), "")
    if _indent(first) != _indent(begin.source):
        found = f"{_indent(begin.source)} spaces, and {_indent(first)} before `{first.strip()}`"
        raise lesson.error(begin, f"expected `{BEGIN}` to be indented as the line below it; found {found}")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _check_exercise_cell(lesson: Lesson, cell: Cell, exercise: Exercise) -> None:
    """The cell has a solution, says how hard and how long, and defines what the exercise is about."""
    if BEGIN not in cell.source:
        raise lesson.error(cell, f"no solution in {exercise.id}: expected `{BEGIN}` ... `{END}` in the cell")
    for option, low, high in (("difficulty", 1, 5), ("minutes", 1, 240)):
        value = cell.options.get(option)
        if not isinstance(value, int) or not low <= value <= high:
            raise lesson.error(cell, f"expected {option}={low}..{high} on {exercise.id}, found {value!r}")
    for what, source in (("the solution", cell.source), ("the stub", stub(cell.source, exercise.id))):
        defined = _defined_names(lesson, cell, what, source)
        missing = [name for name in exercise.names if name not in defined]
        if missing:
            raise lesson.error(cell, f"{what} of {exercise.id} must define {', '.join(missing)} at top level")


def stub(source: str, exercise_id: str) -> str:
    """`source` with each solution region replaced as the released notebook will have it."""
    return re.sub(
        rf"^([ \t]*){BEGIN}[ \t]*\n.*?^[ \t]*{END}[ \t]*$",
        lambda match: match[1] + stub_line(exercise_id),
        source,
        flags=re.DOTALL | re.MULTILINE,
    )


def _defined_names(lesson: Lesson, cell: Cell, what: str, source: str) -> set[str]:
    names: set[str] = set()
    for node in _parsed(lesson, cell, what, source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _parsed(lesson: Lesson, cell: Cell, what: str, source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        line = cell.line + (error.lineno or 0)
        raise LessonError(lesson.path, line, f"{what} is not valid Python: {error.msg}") from error


def _check_check_cell(lesson: Lesson, cell: Cell, exercise: Exercise) -> None:
    """The cell runs the check, on what the exercise defines: students' cells are locked as they are."""
    call = f'labkit.check("{exercise.id}", {", ".join(exercise.names)})'
    wanted = ast.dump(ast.parse(call, mode="eval").body)
    nodes = ast.walk(_parsed(lesson, cell, "the check", cell.source))
    if not any(isinstance(node, ast.Call) and ast.dump(node) == wanted for node in nodes):
        raise lesson.error(cell, f"expected `{call}` in the cell of the check")


def _check_pairs(lesson: Lesson, known: dict[str, Exercise]) -> None:
    """Every exercise has its cell, and its visible check after it."""
    exercise_cells = {c.options["exercise"]: c for c in lesson.cells if "exercise" in c.options}
    check_cells = {c.options["check"]: c for c in lesson.cells if "check" in c.options}
    for exercise_id, cell in exercise_cells.items():
        if exercise_id not in check_cells:
            raise lesson.error(
                cell, f'no check for {exercise_id}: expected a cell with check="{exercise_id}"'
            )
    for exercise_id, cell in check_cells.items():
        written = exercise_cells.get(exercise_id)
        if written is None or written.line > cell.line:
            raise lesson.error(cell, f'no cell with exercise="{exercise_id}" before its check')
    for exercise_id in known:
        if exercise_id not in exercise_cells:
            raise LessonError(
                lesson.path, 1, f'no cell with exercise="{exercise_id}", which the checks define'
            )


def _check_guesses(lesson: Lesson) -> None:
    """What reveals an answer stands after its guess, and a cell that computes one says that it reveals it."""
    asked: set[str] = set()
    for cell in lesson.cells:
        if "predict" in cell.options:
            asked.add(cell.options["predict"])
        elif "reveals" in cell.options:
            if cell.options["reveals"] not in asked:
                name = cell.options["reveals"]
                raise lesson.error(cell, f'reveals="{name}", and no cell before it has predict="{name}"')
        elif cell.kind == "code" and _COMPUTED.search(cell.source):
            raise lesson.error(cell, 'a computed answer to a guess is in sight: expected reveals="..."')


def _check_minutes(lesson: Lesson) -> None:
    """A lesson takes at least as long as its exercises."""
    minutes = sum(cell.options["minutes"] for cell in lesson.cells if "exercise" in cell.options)
    if lesson.minutes < minutes:
        problem = f"the lesson is said to take {lesson.minutes} minutes, and its exercises {minutes} together"
        raise LessonError(lesson.path, 1, problem)


def _check_scoreboard(lesson: Lesson) -> None:
    """One scoreboard where there is something to score, at the very end."""
    boards = [cell for cell in lesson.cells if cell.options.get("scoreboard")]
    exercise_cells = [cell for cell in lesson.cells if "exercise" in cell.options]
    if len(boards) > 1:
        raise lesson.error(boards[1], f"a second scoreboard; the first is on line {boards[0].line}")
    if exercise_cells and not boards:
        raise LessonError(lesson.path, 1, "no cell with scoreboard=true, where the graded cells go")
    if boards and boards[0] is not lesson.cells[-1]:
        raise lesson.error(
            boards[0], "the scoreboard is not the lesson's last cell; what follows it would be folded"
        )
