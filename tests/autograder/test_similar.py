"""Code that is alike: copies are found however they are disguised, and work done apart is not listed."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conftest import notebook

from autograder.cli import main
from autograder.grade.reference import REPOSITORY, graded_lessons, stub_cells
from autograder.gradebook.course import init_course
from autograder.gradebook.similar import MOST_TOKENS, alike, winnow
from autograder.gradebook.similar_page import handed_out
from autograder.selftest.alternatives import alternatives

LESSON = "00_collectives"


def answers(lesson: str) -> dict[str, list[str]]:
    """Exercise -> other right answers to it than the reference."""
    found: dict[str, list[str]] = defaultdict(list)
    for alternative in alternatives(lesson):
        found[alternative.exercise.id].append(alternative.source)
    return found


def disguised(source: str) -> str:
    """The same code with other names, other comments, and laid out another way."""
    mine = set(re.findall(r"(?m)^\s*(\w+)(?:, \w+)* = ", source)) | set(re.findall(r"for (\w+)", source))
    tokens = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = f"another_{token.string}" if token.string in mine else token.string
        text = "# mine\n" if token.type == tokenize.COMMENT else text
        tokens.append((token.type, text))
    return tokenize.untokenize(tokens)


def reported(course: Path, submissions: dict[str, dict[str, Any]]) -> list[str]:
    """The lines of `report --similar` for a class that handed these in."""
    init_course(course)
    for student, what in submissions.items():
        path = course / "submitted" / student / LESSON / f"{LESSON}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(what))
    done = CliRunner().invoke(main, ["report", "00", "--similar", "--course", str(course)])
    return done.stdout.splitlines()


@pytest.mark.days(8)
def test_copies_are_found_and_work_done_apart_is_not() -> None:
    """Of all right answers that are known to differ: each against each of the same exercise, and two whole
    notebooks of a lesson. autograder/README.md tells the figures.
    """
    apart = wrongly = copies = found = 0
    readme = (REPOSITORY / "autograder" / "README.md").read_text(encoding="utf-8")
    told = re.search(r"of the (\d+) pairs of right answers .* and the (\d+) pairs\sof whole", readme)
    for lesson in graded_lessons():
        given, by_exercise = handed_out(lesson), answers(lesson)
        pairs = [pair for sources in by_exercise.values() for pair in itertools.combinations(sources, 2)]
        whole = [
            [sources[number] for sources in by_exercise.values() if number < len(sources)]
            for number in (0, 1)
        ]
        for one, other in [*(([a], [b]) for a, b in pairs), tuple(whole)]:
            apart += 1
            wrongly += bool(alike({"one": one, "other": other}, given))
        copies += 1
        copied = [*(disguised(source) for source in reversed(whole[0]))]
        found += bool(alike({"one": whole[0], "copy": copied, "other": whole[1]}, given))
    assert (wrongly, found) == (0, copies)
    assert told is not None
    assert (apart - copies, copies) == tuple(map(int, told.groups())), "as autograder/README.md has it"


def test_one_copied_exercise_of_a_lesson_is_found() -> None:
    """The longest one; everything else is the other's own."""
    lesson = "04_pipeline"
    by_exercise = answers(lesson)
    longest = max(by_exercise, key=lambda exercise: len(by_exercise[exercise][0]))
    one = [sources[0] for sources in by_exercise.values()]
    other = [
        disguised(sources[0]) if exercise == longest else sources[-1]
        for exercise, sources in by_exercise.items()
        if exercise == longest or len(sources) > 1
    ]
    (pair,) = alike({"one": one, "other": other}, handed_out(lesson))
    assert pair.students == ("one", "other")


def test_what_many_have_is_no_sign() -> None:
    given, sources = handed_out(LESSON), [found[0] for found in answers(LESSON).values()]
    assert len(alike(dict.fromkeys("abc", sources), given)) == 3
    assert alike(dict.fromkeys("abcdefgh", sources), given) == []


def test_a_pair_that_has_nothing_in_common_costs_next_to_nothing() -> None:
    """Of 500 students there are 125,000 pairs: twice the class makes twice the calls, not four times."""

    def calls(students: int) -> int:
        made = 0

        def count(frame: Any, event: str, about: Any) -> None:
            nonlocal made
            made += event == "call"

        work = {f"{n}": [f"def f(a):\n    return {' + '.join([f'a.b{n}'] * 8)}\n"] for n in range(students)}
        sys.setprofile(count)
        try:
            assert alike(work, []) == []
        finally:
            sys.setprofile(None)
        return made

    assert calls(120) < 2.1 * calls(60)


def test_texts_with_values_in_them_count_as_others_do() -> None:
    """Python 3.11 takes one for a single token, later ones for many."""
    texts = ('"a rank"', 'f"rank {rank} of {size:>4}: {a!r}"', "f'''{n['a']:<{9}} of {f\"{k}\"} all'''")
    end = "x + " * 20
    found = [winnow([f"def f(rank):\n    print({text})\n    return {end}1"]) for text in texts]
    hashes = [{passage.hash for passage in passages} for passages in found]
    assert len(hashes[0]) > 1
    assert hashes[0] == hashes[1] == hashes[2]


def test_the_reference_and_what_was_handed_out_are_no_sign() -> None:
    given = handed_out(LESSON)
    assert alike({"one": given, "other": given}, given) == []


def test_the_report_lists_pairs_and_shows_them_side_by_side(tmp_path: Path) -> None:
    first = [found[0] for found in answers(LESSON).values()]
    hostile = "x = '</pre><script>window.ran = 1</script>'"
    submissions = {
        "ada": notebook(*first, hostile),
        "bob": notebook(hostile, *map(disguised, first)),
        "eve": notebook(*(found[1] for found in answers(LESSON).values())),
        "zoe": notebook(*(cell.source for cell in stub_cells(LESSON))),
        "odd": notebook("def (:", "!ls", "'''open"),
    }
    lines = reported(tmp_path, submissions)
    assert len(lines) == 2
    assert lines[0].endswith("ada and bob")
    page = (tmp_path / "records" / LESSON / "similar.html").read_text()
    assert page.count("<h3>") == 2
    assert page.count("<mark>") > 20
    assert "<script" not in page


HIDDEN = {
    "by a line that only IPython reads": "!'''\n{}",
    "below a long comment": "#" * 100_001 + "\n{}",
    "below many comments": "# a\n" * 40_000 + "{}",
    "by other line ends": "{}",
}


@pytest.mark.days
@pytest.mark.parametrize("way", HIDDEN)
def test_a_copy_is_found_however_it_is_hidden_in_its_cells(tmp_path: Path, way: str) -> None:
    """What grading collects is what is compared."""
    first = [found[0] for found in answers(LESSON).values()]
    copies = [HIDDEN[way].format(source) for source in first]
    if way == "by other line ends":
        copies = [source.replace("\n", "\r") for source in copies]
    ours, *_ = reported(tmp_path, {"ada": notebook(*first), "bob": notebook(*copies)})
    assert ours.endswith("ada and bob")


@pytest.mark.days
def test_more_code_than_can_be_compared_is_told(tmp_path: Path) -> None:
    """Not what comes of no definition, and not what nobody could have written by hand."""
    first = [found[0] for found in answers(LESSON).values()]
    filler = "x = [" + "1," * 40_000 + "]"
    submissions = {
        "ada": notebook(*first),
        "bob": notebook(*["print([" + "1," * 40_000 + "])"] * 10, *first),
        "eve": notebook(filler, filler, *first),
    }
    pair, cut, _ = reported(tmp_path, submissions)
    assert pair.endswith("ada and bob")
    assert cut == f"eve: only the first {MOST_TOKENS} tokens were compared; look at the rest"


@pytest.mark.parametrize("source", ["", "x", "'''open", "def (:\n  !", "\x00", "if 1:\n\tx\n  y"])
def test_code_that_cannot_be_read_is_no_error(source: str) -> None:
    assert alike({"one": [source], "other": [source]}, []) == []
