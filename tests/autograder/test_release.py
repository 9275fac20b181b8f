"""The students' bundle holds no line of a solution and nothing of the grader's."""

from __future__ import annotations

from pathlib import Path

import pytest

from autograder.gradebook.release import Leak, leaked_lines, solution_lines, write_bundle


def test_no_distinctive_line_of_a_solution_is_in_the_notebooks(tmp_path: Path) -> None:
    paths = write_bundle(tmp_path / "bundle")
    lines = solution_lines()
    assert len(lines) > 50
    texts = {path: path.read_text(encoding="utf-8") for path in paths if path.suffix == ".ipynb"}
    assert texts
    assert not [(path.name, line) for path, text in texts.items() for line in lines if f'"{line}' in text]
    names = {path.relative_to(tmp_path / "bundle").parts[0] for path in paths}
    assert names >= {"labkit", "notebooks", "pyproject.toml"}
    assert (tmp_path / "bundle" / "cluster" / "slurm" / "lab.sbatch").is_file(), "for `labkit lab --slurm`"
    assert not names & {"autograder", "solutions", "tests"}


def test_a_leak_is_found(tmp_path: Path) -> None:
    """The search can fail: a bundle with one solution line in it is refused."""
    line = sorted(solution_lines())[0]
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "leak.ipynb").write_text(
        f'{{"cells": [{{"source": [\n    "    {escaped}\\n",\n]}}]}}'
    )
    assert any(line[:20] in leak for leak in leaked_lines(tmp_path)) or '"' in line


def test_a_bundle_goes_into_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(FileExistsError, match="not empty"):
        write_bundle(tmp_path)
    assert Leak.__doc__
