"""The students' bundle holds no line of a solution and nothing of the grader's."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder.grade.reference import REPOSITORY
from autograder.gradebook import release, requests
from autograder.gradebook.problems import CourseError
from autograder.gradebook.release import leaked_lines, solution_lines, write_bundle


@pytest.mark.days
def test_no_distinctive_line_of_a_solution_is_in_the_notebooks(tmp_path: Path) -> None:
    paths = write_bundle(tmp_path / "bundle")
    lines = solution_lines()
    assert len(lines) > 50
    notebooks = {path: nbformat.read(path, as_version=4) for path in paths if path.suffix == ".ipynb"}
    assert notebooks
    texts = {path: "\n".join(cell.source for cell in found.cells) for path, found in notebooks.items()}
    shown = {path: {line.strip() for line in text.splitlines()} for path, text in texts.items()}
    assert not [(path.name, line) for path, found in shown.items() for line in found & set(lines)]
    names = {path.relative_to(tmp_path / "bundle").parts[0] for path in paths}
    assert names >= {"labkit", "notebooks", "pyproject.toml"}
    assert (tmp_path / "bundle" / "cluster" / "slurm" / "lab.sbatch").is_file(), "for `labkit lab --slurm`"
    assert not names & {"autograder", "solutions", "tests"}


@pytest.mark.days
def test_a_leak_is_found(tmp_path: Path) -> None:
    """Whichever line it is, with quotes and commas too, and wherever it stands in its cell."""
    lines = sorted(solution_lines())
    assert any('"' in line for line in lines)
    assert any(line.endswith(",") for line in lines)
    nbformat.write(
        new_notebook(cells=[new_code_cell(f"if True:\n    {line}") for line in lines]), tmp_path / "a.ipynb"
    )
    assert {leak.rpartition(" of ")[0] for leak in leaked_lines(tmp_path)} == {
        f"a.ipynb: {line!r}" for line in lines
    }


def test_a_bundle_goes_into_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(CourseError, match="not empty"):
        write_bundle(tmp_path)


@pytest.mark.parametrize("there", [False, True])
def test_a_bundle_that_cannot_be_written_whole_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """So the next try finds the folder as this one did."""
    bundle = tmp_path / "bundle"
    if there:
        bundle.mkdir()
    monkeypatch.setattr(release, "PARTS", (*release.PARTS, "absent"))
    with pytest.raises(CourseError, match="absent goes into the bundle, and is not there"):
        write_bundle(bundle)
    assert list(tmp_path.rglob("*")) == ([bundle] if there else [])


@pytest.mark.days(13)
def test_the_bundle_explains_itself_and_installs(tmp_path: Path) -> None:
    """What its README says is there, and its environment has the `labkit` command and no other of ours."""
    folder = tmp_path / "the bundle"
    write_bundle(folder)
    readme = (folder / "README.md").read_text()
    named = set(re.findall(r"`((?:\w+/|Makefile|[a-z]+\.t\w+))`", readme))
    named.discard(requests.FILE)  # a student writes it
    assert len(named) > 3
    assert all((folder / name).exists() for name in named)
    assert "test:" not in (folder / "Makefile").read_text()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / ".venv")], check=True)
    python = folder / ".venv" / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
    ]
    subprocess.run([*pip, "--quiet", "-e", str(folder)], check=True, timeout=200)
    assert {p.name for p in python.parent.iterdir() if p.name in ("labkit", "autograder")} == {"labkit"}
    ours = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    theirs = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert theirs["dependencies"] == ours["dependencies"]
    assert theirs["optional-dependencies"].keys() == {"lab", "tensorboard"}


@pytest.mark.days(3)
def test_make_in_a_bundle_says_what_there_is(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    make = ["make", "-n", "-C", str(tmp_path / "bundle")]
    done = subprocess.run([*make, "lab"], capture_output=True, text=True, timeout=60)
    assert "labkit.cli lab" in done.stdout, done.stderr
    done = subprocess.run([*make, "env"], capture_output=True, text=True, timeout=60)
    assert "Installing .[lab] into .venv" in done.stdout, "what cluster/README.md tells students to do"
    assert subprocess.run([*make, "test"], capture_output=True, timeout=60).returncode == 2
