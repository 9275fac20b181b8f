"""The wheel alone, in an environment that has what it needs and not this repository."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import zipfile
from pathlib import Path

import nbformat
import pytest

from autograder.gradebook.wheel import write_wheel
from labkit.build.course import instructor_notebook
from labkit.build.markup import read_lesson

HOUSE = Path(__file__).resolve().parents[2]
LESSONS = [path.stem for path in sorted((HOUSE / "solutions").glob("[0-9][0-9]_*.py"))]
pytestmark = [pytest.mark.days(), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel. The packages it needs are those of this one, but for this repository:
    a .pth file that names a folder does not have the .pth files in it read.
    """
    folder = tmp_path_factory.mktemp("empty") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=200)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def run(python: Path, *words: str, cwd: Path, code: int = 0) -> str:
    """What a command of the environment prints. code: its exit status."""
    path = f"{python.parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(cwd), "LANG": "C.UTF-8"}
    done = subprocess.run(words, env=environment, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_it_has_the_lessons_and_nothing_of_the_grader(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        scripts = files.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert wheel.name.startswith("many_gpu_workbook-")
    assert {name.split("/")[2] for name in names if name.endswith(".ipynb")} == set(LESSONS)
    assert [name for name in names if "autograder" in name or "unseen" in name or "solutions" in name] == []
    assert "labkit = labkit.cli:main" in scripts
    assert "autograder" not in scripts


def test_lessons_are_laid_out_and_work_is_kept(python: Path, tmp_path: Path) -> None:
    labkit = str(python.parent / "labkit")
    assert "files written to mine" in run(python, labkit, "lessons", "mine", cwd=tmp_path)
    notebook = tmp_path / "mine" / LESSONS[0] / f"{LESSONS[0]}.ipynb"
    assert notebook.read_bytes() == (HOUSE / "notebooks" / LESSONS[0] / notebook.name).read_bytes()
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"README.md", *LESSONS}
    notebook.write_text("my work")
    (tmp_path / "mine" / "README.md").unlink()
    assert "1 files written" in run(python, labkit, "lessons", "mine", cwd=tmp_path)
    assert notebook.read_text() == "my work"
    assert "0.1.0" in run(python, labkit, "--version", cwd=tmp_path)


def test_ranks_run_and_the_checks_are_there(python: Path, tmp_path: Path) -> None:
    """With nothing of the repository on the path."""
    program = (
        "import labkit, torch.distributed as dist\n"
        "if __name__ == '__main__':\n"
        "    print(labkit.__file__, labkit.launch(dist.get_world_size, ranks=2, backend='gloo').results)\n"
        "    from labkit.checks import registry\n"
        "    print([name for name in registry.lessons() if not registry.exercises(name)])\n"
        "    print('cases', len(registry.exercise('01.inference-bytes').cases(1)) > 0)\n"
    )
    (tmp_path / "program.py").write_text(program)
    told = run(python, str(python), "program.py", cwd=tmp_path)
    assert str(python.parent.parent) in told
    assert "[2, 2]\n[]\ncases True" in told


SOLVED = "06.copy-to-tensor-parallel"


@pytest.fixture
def solved(python: Path, tmp_path: Path) -> Path:
    """Lesson 06 as the wheel lays it out, with one of its exercises solved."""
    run(python, str(python.parent / "labkit"), "lessons", "mine", cwd=tmp_path)
    lesson = next(name for name in LESSONS if name.startswith("06_"))
    path = tmp_path / "mine" / lesson / f"{lesson}.ipynb"
    answers = instructor_notebook(read_lesson(HOUSE / "solutions" / f"{lesson}.py"))
    answer = {cell.id: cell.source for cell in answers.cells}
    notebook = nbformat.read(path, as_version=4)
    (cell,) = (cell for cell in notebook.cells if f'NotImplementedError("{SOLVED}' in cell.source)
    cell.source = answer[cell.id]
    nbformat.write(notebook, path)
    return path


def test_a_solved_exercise_is_validated(python: Path, solved: Path) -> None:
    told = run(
        python, str(python.parent / "labkit"), "validate", "--json", str(solved), cwd=solved.parent, code=1
    )
    told_of = json.loads(told)["exercises"]
    passed = {name: one["points"] == one["max_points"] for name, one in told_of.items()}
    assert passed == {name: name == SOLVED for name in passed}
    assert len(passed) == 5


IN_A_KERNEL = """
import sys, nbformat, nbclient

notebook = nbformat.read(sys.argv[1], as_version=4)
wanted = ("# What this lesson imports", "class CopyToTensorParallel", '"06.copy-to-tensor-parallel"')
code = [cell for cell in notebook.cells if cell.cell_type == "code"]
notebook.cells = [next(cell for cell in code if words in cell.source) for words in wanted[:2]]
notebook.cells.append(next(cell for cell in code if f"labkit.check({wanted[2]}" in cell.source))
nbclient.NotebookClient(notebook, timeout=90).execute()
print(notebook.cells[-1].outputs)
"""


def test_a_check_runs_in_a_kernel(python: Path, solved: Path) -> None:
    told = run(python, str(python), "-c", IN_A_KERNEL, str(solved), cwd=solved.parent)
    points = re.search(rf"{SOLVED}.*?(\d+) of (\d+) points", told)
    assert points is not None, told
    assert points[1] == points[2]


def test_what_goes_to_a_cluster_is_in_it(python: Path, tmp_path: Path) -> None:
    """`labkit lab --slurm` submits a script, and knows the repository's sites by their names."""
    program = (
        "from labkit.slurm import lab_job, site\n"
        "print(lab_job.SCRIPT, 'labkit.slurm.lab_node' in lab_job.SCRIPT.read_text())\n"
        "print(site.find_site('leonardo').node.gpus)\n"
    )
    script, gpus = run(python, str(python), "-c", program, cwd=tmp_path).splitlines()
    assert script.startswith(str(python.parent.parent))
    assert script.endswith("True")
    assert gpus == "4"


def test_to_end_a_job_takes_no_lessons(python: Path, tmp_path: Path) -> None:
    """None are written beside what it says, here that there is no Slurm."""
    environment = {"PATH": str(python.parent)}
    command = [str(python.parent / "labkit"), "lab", "--stop"]
    told = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert told.stderr == "labkit: no squeue here: this needs a machine whose jobs Slurm runs\n"
    assert list(tmp_path.iterdir()) == []


def test_lab_opens_the_lessons(python: Path, tmp_path: Path) -> None:
    """In a folder of one's own, where they are laid out when they are not there."""
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    command = [str(python.parent / "labkit"), "lab", "--no-browser"]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as lab:
        try:
            assert lab.stdout is not None
            address = next(found[0] for line in lab.stdout if (found := re.search(r"http://\S+", line)))
            there = address.replace("/lab?", "/api/contents/?")
            with urllib.request.urlopen(there, timeout=30) as answer:
                shown = answer.read().decode()
        finally:
            lab.send_signal(signal.SIGINT)
            lab.wait(30)
    assert all(lesson in shown for lesson in LESSONS)
    assert (tmp_path / "lessons" / "README.md").is_file()
