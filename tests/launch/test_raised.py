"""What is shown of an exception on a rank: what led to it, its notes, its parts; and always something."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

import labkit
from labkit.magics import RanksMagics

pytestmark = pytest.mark.timeout(60)


def shown(function: object) -> str:
    with pytest.raises(labkit.LaunchError) as caught:
        labkit.launch(function, ranks=1)  # type: ignore[arg-type]
    return str(caught.value)


def test_causes_contexts_and_notes() -> None:
    def work() -> None:
        try:
            try:
                {}["missing"]
            except KeyError:
                int("no number")
        except ValueError as error:
            raise RuntimeError("the last") from error

    def noted() -> None:
        error = ValueError("first line")
        error.add_note("a note of two\nlines")
        raise error

    text = shown(work)
    lines = [line.strip() for line in text.splitlines()]
    last, cause = lines.index("RuntimeError: the last"), lines.index("caused by:")
    value = lines.index("ValueError: invalid literal for int() with base 10: 'no number'")
    context, key = lines.index("while handling:"), lines.index("KeyError: 'missing'")
    assert last < cause < value < context < key
    assert 'int("no number")' in lines[cause:value]
    assert "  ValueError: first line\n  a note of two\n  lines\n" in shown(noted)


def test_a_context_that_was_suppressed_is_not_shown() -> None:
    def work() -> None:
        try:
            {}["missing"]
        except KeyError:
            raise ValueError("alone") from None

    assert "KeyError" not in shown(work)


def test_parts_of_a_group() -> None:
    def work() -> None:
        raise ExceptionGroup("two things", [ValueError("one"), TypeError("two")])

    text = shown(work)
    assert "ExceptionGroup: two things" in text
    assert "  part 1 of 2:\n  ValueError: one\n  part 2 of 2:\n  TypeError: two\n" in text


def test_an_exception_without_a_text_does_not_hide_itself() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def work() -> None:
        raise Mute

    text = shown(work)
    assert "rank 0 failed: Mute: (its text cannot be had: __str__ raised RuntimeError)" in text
    assert "raise Mute" in text


def test_an_exception_that_cannot_be_looked_at_does_not_hide_itself() -> None:
    class Sour(Exception):
        @property
        def __notes__(self) -> list[str]:
            raise RuntimeError("no")

    def work() -> None:
        raise Sour("the text")

    text = shown(work)
    assert "rank 0 failed: Sour: the text" in text
    assert "(where it came from cannot be had: RuntimeError)" in text
    with labkit.session(ranks=1) as session, pytest.raises(labkit.LaunchError, match="Sour: the text"):
        session.call(work)


def test_an_exception_that_ends_who_looks_at_it_is_missed_in_a_sentence() -> None:
    class Bitter(Exception):
        @property
        def __notes__(self) -> list[str]:
            raise SystemExit

    def work() -> None:
        raise Bitter

    assert "could not write why" in shown(work)


def test_a_chain_that_bites_its_tail_ends() -> None:
    def work() -> None:
        one, other = ValueError("one"), TypeError("other")
        one.__cause__, other.__cause__ = other, one
        raise one

    assert shown(work).count("TypeError: other") == 1


def test_a_syntax_error_shows_the_cells_line_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell.instance()
    shell.register_magics(RanksMagics(shell))
    shell.run_cell("%%ranks 1\nx = 1\nfor for")
    printed = capsys.readouterr().out
    shell.run_line_magic("ranks", "stop")
    InteractiveShell.clear_instance()
    assert "line 3" in printed
    assert "for for" in printed
    assert "SyntaxError" in printed
    assert ".py" not in printed, "no frames of ours"


@pytest.mark.parametrize(
    "line", ["1000", "two", "2 --timeout inf", "2 --timeout nan", "2 --timeout -1", "2 --seed -1"]
)
def test_a_wrong_line_of_a_cell_is_one_line_of_text(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell.instance()
    magics = RanksMagics(shell)
    shell.register_magics(magics)
    shell.run_cell(f"%%ranks {line}\n1")
    told = capsys.readouterr()
    InteractiveShell.clear_instance()
    assert magics.session is None
    assert "UsageError" in told.err + told.out
    assert "Traceback" not in told.err + told.out
