"""A file that whoever calls a command names is never half written, whatever happens meanwhile."""

from __future__ import annotations

import ast
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import notebook, solution
from recorded import RING, new_course, record

from autograder.cli import main
from autograder.grade.reference import REPOSITORY
from autograder.gradebook.named import write_named

# Functions that open files for writing, and write none that somebody named.
OWN = {
    "batch/submissions.py": {"merge_if_needed", "_renew_penalty"},  # the marker beside a record
    "gradebook/alone.py": {"alone"},  # the lock
    "gradebook/collecting.py": {"_write_time", "_copy_file"},  # what was handed in, into submitted/
    "gradebook/course.py": {"add_lesson", "init_course", "put_in_place"},  # source/, submitted/
    "gradebook/named.py": {"write_named"},  # what is no file
    "gradebook/release.py": {"_write_own_files"},  # a new folder, moved when it is whole
    "gradebook/report.py": {"draw_lost_points"},  # into memory
    "gradebook/uploads.py": {"extract"},  # what was handed in
}
WRITES = {"write_text", "write_bytes", "savefig", "copyfile"}


@contextmanager
def little_room(size: int) -> Iterator[None]:
    """No file can have more bytes than this, as on a disk that is almost full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.days
@pytest.mark.parametrize(
    "words",
    [
        ["report", "--csv", "table.csv"],
        ["report", "--figure", "table.png"],
        ["export", "--to", "moodle", "-o", "table.csv"],
        ["export", "--to", "moodle", "--into", "table.csv", "-o", "table.csv"],
    ],
)
def test_what_cannot_be_written_whole_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    course = new_course(tmp_path / "course")
    record(course, "1", notebook(solution(RING)))
    path = tmp_path / words[-1]
    before = 'Identifier,"Full name",Grade\nParticipant 1,Ada,\n'
    path.write_text(before)
    path.chmod(0o640)
    monkeypatch.chdir(tmp_path)
    command = [words[0], "00", "--course", str(course.root), *words[1:]]
    with little_room(10):
        done = CliRunner().invoke(main, command)
    assert done.exit_code == 1
    assert f"File too large: '{path.name}'" in done.stderr
    assert path.read_text() == before
    assert sorted(os.listdir(tmp_path)) == ["course", path.name]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert path.read_bytes() != before.encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_links_and_what_is_no_file_stay_what_they_are(tmp_path: Path) -> None:
    path, link, pipe = tmp_path / "table.csv", tmp_path / "link.csv", tmp_path / "pipe"
    link.symlink_to(path)
    write_named(link, b"one")
    assert (link.is_symlink(), path.read_bytes()) == (True, b"one")
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    write_named(pipe, b"two")
    assert reader.communicate(timeout=20)[0] == b"two"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    writes = (
        "import pathlib, sys; from autograder.gradebook.named import write_named; print('one', flush=True)"
    )
    command = [sys.executable, "-c", f"{writes}; write_named(pathlib.Path('/dev/stdout'), b'two')"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with path.open("ab") as out:
        subprocess.run(command, stdout=out, env=environment, check=True)
        out.write(b"three")
    assert path.read_bytes().endswith(b"three")


def test_nothing_else_opens_a_file_that_somebody_named() -> None:
    root = REPOSITORY / "autograder"
    files = [*root.glob("*.py"), *(root / "gradebook").rglob("*.py"), *(root / "batch").rglob("*.py")]
    found = {(str(path.relative_to(root)), name) for path in files for name in _writers(path)}
    assert found == {(path, name) for path, names in OWN.items() for name in names}


def _writers(path: Path) -> Iterator[str]:
    """The functions of a module that write files themselves."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef) and any(map(_writes, ast.walk(function))):
            yield function.name


def _writes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    words = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
    modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    opens = name == "open" and any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)
    return name in WRITES or opens or (name == "write" and ast.unparse(node.func) == "nbformat.write")
