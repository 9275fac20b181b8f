"""What `autograder report NN --similar` tells: the pairs in a table, and side by side on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader

from autograder.grade.reading import read_within_limits
from autograder.grade.records import FOLDER
from autograder.grade.reference import reference_cells, stub_cells
from autograder.grade.submitted import read_notebook
from autograder.gradebook.course import Course
from autograder.gradebook.roster import Roster, read_roster
from autograder.gradebook.similar import JOINT, MOST_TOKENS, Pair, alike, is_cut
from labkit.checks.source.notebook import BadNotebook
from labkit.checks.source.text import python_lines, visible
from labkit.whole_file import write_whole

PAGE = "similar.html"
MOST_PAIRS = 50  # on the page


def similar(course: Course, lesson: str) -> str:
    """The pairs of a lesson that a person should look at, a line each. Writes records/LESSON/similar.html."""
    cells, roster = own_cells(course, lesson), read_roster(course.root)
    pairs = alike(cells, handed_out(lesson))
    page = course.root / FOLDER / lesson / PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(page, _page(lesson, pairs, cells, roster).encode("utf-8", "replace"))
    lines = [f"{pair.share:>5.0%}  {pair.common:>4} passages  {_who(pair, roster)}" for pair in pairs]
    lines = lines or ["no two are more alike than work done apart is"]
    lines += [
        f"{roster.called(student)}: only the first {MOST_TOKENS} tokens were compared; look at the rest"
        for student, theirs in cells.items()
        if is_cut(theirs)
    ]
    return "\n".join([*lines, f"side by side: {page}"])


def own_cells(course: Course, lesson: str) -> dict[str, list[str]]:
    """Student -> the code cells that are not as they were handed out, and that define something, as grading
    collects them: without IPython's own lines. What cannot be read is left out.
    """
    released = {cell.source.strip() for cell in stub_cells(lesson)}
    found = {}
    for submitted in course.submissions(lesson):
        try:
            there = read_notebook(submitted.notebook).cells
        except (BadNotebook, OSError):
            continue
        cells = read_within_limits([cell for cell in there if cell.source.strip() not in released])
        parsed = (cell.read() for cell in cells)
        found[submitted.student] = [_lines_of(cell.source) for cell in parsed if cell.statements]
    return found


def _lines_of(source: str) -> str:
    """The source with line ends of one kind: Python takes three kinds, its `tokenize` two."""
    return "\n".join(line.rstrip("\r\n") for line in python_lines(source))


def handed_out(lesson: str) -> list[str]:
    """What a lesson's students were given, and the reference."""
    return [cell.source for cell in (*stub_cells(lesson), *reference_cells(lesson))]


def _page(lesson: str, pairs: Sequence[Pair], cells: Mapping[str, Sequence[str]], roster: Roster) -> str:
    environment = Environment(loader=PackageLoader("autograder.gradebook"), autoescape=True)
    shown = [(pair, _sides(pair, cells, roster)) for pair in pairs[:MOST_PAIRS]]
    return environment.get_template("similar.html.j2").render(lesson=lesson, pairs=shown, count=len(pairs))


def _sides(
    pair: Pair, cells: Mapping[str, Sequence[str]], roster: Roster
) -> list[tuple[str, list[tuple[str, bool]]]]:
    """For each of the two: how they are called, and their lines."""
    sides = zip(pair.students, pair.lines, strict=True)
    return [(roster.called(student), _marked(cells[student], lines)) for student, lines in sides]


def _marked(cells: Sequence[str], common: frozenset[int]) -> list[tuple[str, bool]]:
    """The lines of a source, and whether each is in a common passage."""
    lines = enumerate(JOINT.join(cells).split("\n"), 1)
    return [(visible(line), number in common) for number, line in lines]


def _who(pair: Pair, roster: Roster) -> str:
    return " and ".join(map(roster.called, pair.students))
