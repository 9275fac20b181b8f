"""What a notebook shows of a mistake in what labkit was asked for, and what it shows in full."""

from __future__ import annotations

import pickle
import re
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import labkit
from labkit import tracebacks
from labkit.launch.handover.request import check_timeout
from labkit.whole_file import write_whole

pytestmark = pytest.mark.timeout(60)


class Notebook:
    """What a notebook's cells show where errors are shown as `%load_ext labkit` has it."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._shell = InteractiveShell.instance()
        tracebacks.install(self._shell)
        self._capsys = capsys

    def shows(self, cell: str, **names: Any) -> str:
        """The output of a cell in which there are these names."""
        self._shell.push(names)
        self._capsys.readouterr()
        self._shell.run_cell(cell)
        return re.sub(r"\x1b\[[0-9;]*m", "", self._capsys.readouterr().out)


@pytest.fixture
def notebook(capsys: pytest.CaptureFixture[str]) -> Iterator[Notebook]:
    yield Notebook(capsys)
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("ranks=0", "ValueError: ranks must be a whole number from 1 to 512, found 0"),
        ("timeout='60'", "ValueError: timeout must be a number of seconds, more than 0"),
        ("seed='a'", "ValueError: seed must be a whole number from 0, or None, found 'a'"),
        ("backend='mpi'", "ValueError: backend must be 'gloo' or 'nccl', found 'mpi'"),
        ("env=['A']", "TypeError: env must be a dict of names and values, found ['A']"),
        ("rank=2", "did you mean ranks=, of launch?"),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(notebook: Notebook, options: str, told: str) -> None:
    text = notebook.shows(f"launch(len, {options})", launch=labkit.launch)
    assert told in text
    assert f"----> 1 launch(len, {options})" in text
    assert len(text.splitlines()) <= 7
    assert max(map(len, text.splitlines())) < 110


def test_so_are_those_of_a_session(notebook: Notebook) -> None:
    with labkit.session(ranks=1) as session:
        shows = partial(notebook.shows, s=session)
        assert "TypeError: expected a dict of names" in shows("s.push(5)")
        assert "ValueError: there is no rank 9" in shows("s.run('1', ranks=[9])")
        assert all("labkit/" not in shows(cell) for cell in ("s.push(5)", "s.run('1', ranks=[9])"))
        text = shows("s.run('x=')")
        assert "SyntaxError: invalid syntax" in text
        assert "labkit/" not in text


def test_a_cell_that_is_no_python_is_shown_as_ever(notebook: Notebook) -> None:
    text = notebook.shows("x = = 1")
    assert text.split("SyntaxError")[0].splitlines()[-2:] == ["    x = = 1", "        ^"]
    assert "IPython" not in text
    assert "exec('x = = 1')" in notebook.shows("exec('x = = 1')")


def somebodys() -> None:
    check_timeout(b"60")


@pytest.mark.parametrize("call", ["labkits('60')", "somebodys()", "librarys(b'60')"])
def test_only_what_labkit_means_to_say_goes_without_its_frames(notebook: Notebook, call: str) -> None:
    """Not what it says to other code, whose lines have to be seen, nor what nobody has thought of."""
    text = notebook.shows(call, labkits=check_timeout, somebodys=somebodys, librarys=textwrap.dedent)
    assert (Path(textwrap.__file__).name in text) == (call == "librarys(b'60')")
    assert (Path(__file__).name in text) == (call == "somebodys()")
    assert "request.py" not in text


def test_what_the_system_refuses_is_told_wherever_labkit_met_it(notebook: Notebook, tmp_path: Path) -> None:
    text = notebook.shows("write(path, b'')", write=write_whole, path=tmp_path / "none" / "file")
    assert "FileNotFoundError: [Errno 2] No such file or directory" in text
    assert "whole_file.py" not in text
    assert "pathlib" in notebook.shows("path.read_bytes()", path=tmp_path / "none")


def test_such_an_error_can_be_pickled(notebook: Notebook) -> None:
    with pytest.raises(ValueError, match="ranks must be") as caught:
        labkit.launch(len, ranks=0)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
