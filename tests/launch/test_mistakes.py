"""What a notebook shows of a mistake in what labkit was asked for."""

from __future__ import annotations

import pickle
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import labkit
from labkit.launch.handover.request import check_timeout
from labkit.mistakes import told_plainly

pytestmark = pytest.mark.timeout(60)


def shown(call: Callable[[], object], kind: type[BaseException], capsys: pytest.CaptureFixture[str]) -> str:
    """What IPython shows of the error of this kind that the call raises."""
    with pytest.raises(kind) as caught:
        call()
    capsys.readouterr()
    shell = InteractiveShell()
    shell.showtraceback((caught.type, caught.value, caught.tb))
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"ranks": 0}, ValueError, "ValueError: ranks must be a whole number from 1 to 512, found 0"),
        ({"timeout": "60"}, ValueError, "ValueError: timeout must be a number of seconds, more than 0"),
        ({"seed": "a"}, ValueError, "ValueError: seed must be a whole number from 0, or None, found 'a'"),
        ({"backend": "mpi"}, ValueError, "ValueError: backend must be 'gloo' or 'nccl', found 'mpi'"),
        ({"env": ["A"]}, TypeError, "TypeError: env must be a dict of names and values, found ['A']"),
        ({"rank": 2}, TypeError, "did you mean ranks=, of launch?"),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(
    options: dict[str, Any], kind: type[Exception], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(lambda: labkit.launch(len, **options), kind, capsys)
    assert told in text
    assert "--> text = shown(lambda: labkit.launch(len, **options), kind, capsys)" in text
    assert len(text.splitlines()) <= 3


def test_so_are_those_of_a_session(capsys: pytest.CaptureFixture[str]) -> None:
    with labkit.session(ranks=1) as session:
        push: Any = session.push
        assert "expected a dict of names" in shown(lambda: push(5), TypeError, capsys)
        assert "there is no rank 9" in shown(lambda: session.run("1", ranks=[9]), ValueError, capsys)
        text = shown(lambda: session.run("x="), SyntaxError, capsys)
        assert "session.py" not in text
    assert len(shown(lambda: labkit.session(ranks=0), ValueError, capsys).splitlines()) == 2


def somebodys(*_: object) -> None:
    check_timeout(b"60")


@pytest.mark.parametrize(
    ("function", "plain"),
    [
        (check_timeout, True),  # labkit says so itself
        (somebodys, False),  # as it does to other code, whose lines have to be seen
        (textwrap.dedent, False),  # nobody has thought of it
    ],
)
def test_only_what_labkit_means_to_say_goes_without_its_traceback(
    function: Callable[..., Any], plain: bool
) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        told_plainly(function)(b"60")
    assert hasattr(caught.value, "_render_traceback_") is plain


def test_an_error_of_the_system_is_told_wherever_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        told_plainly(Path.read_text)(tmp_path / "none")
    assert hasattr(caught.value, "_render_traceback_")


def test_an_error_that_is_told_plainly_can_be_pickled() -> None:
    with pytest.raises(ValueError, match="ranks must be") as caught:
        labkit.launch(len, ranks=0)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
