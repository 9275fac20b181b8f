"""The `labkit` command: helpful, quick to answer, clear about what is wrong, meaningful exit statuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import small_lesson
from click.testing import CliRunner, Result

from labkit.checks.practice import exercises_of
from labkit.cli import main
from labkit.doctor.machine import LONGEST_FOLDER, probe_temporary_folder
from labkit.doctor.surroundings import slurm_too_old

HOUSE = Path(__file__).resolve().parents[2]


def labkit(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.mark.parametrize("command", ["build", "validate", "lab", "doctor"])
def test_each_command_explains_itself(command: str) -> None:
    result = labkit(command, "--help")
    assert result.exit_code == 0
    assert command in labkit("--help").output
    assert len(result.output.splitlines()) > 4


def test_help_brings_in_nothing_heavy() -> None:
    """--help answers in well under half a second because torch, nbgrader and IPython are not imported."""
    heavy = "torch", "nbgrader", "IPython", "matplotlib", "jupytext", "nbformat", "numpy"
    program = (
        "import sys; from labkit.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - start < 5  # 0.06 s alone; others may be busy


def test_no_such_lesson(tmp_path: Path) -> None:
    small_lesson.write(tmp_path)
    result = labkit("build", "17", "--solutions", tmp_path, "--notebooks", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr == "labkit: no lesson '17'; the lessons are 90_doubling\n"


def test_no_lessons_at_all(tmp_path: Path) -> None:
    result = labkit("build", "--solutions", tmp_path)
    assert result.exit_code == 2
    assert "no lessons in" in result.stderr


def test_a_lesson_with_a_mistake_builds_nothing(tmp_path: Path) -> None:
    """The small lesson's exercise is in no module of checks, which is a mistake here."""
    path = small_lesson.write(tmp_path)
    line = small_lesson.SOURCE.split("\n").index('# %% exercise="90.double-it" difficulty=2 minutes=15') + 1
    result = labkit("build", "90_doubling", "--solutions", tmp_path, "--notebooks", tmp_path / "out")
    assert result.exit_code == 2
    assert f"{path}:{line}: unknown exercise '90.double-it'" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", ["lab --root", "tensorboard", "plan --model", "doctor --site"])
def test_a_path_that_the_system_refuses_is_told_in_a_line(words: str) -> None:
    """Here one whose name is too long, as also root may not look for it."""
    result = labkit(*words.split(), "x" * 300)
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert "xxx" in result.output


def test_a_folder_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = labkit("lessons", tmp_path / "file" / "lessons")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"labkit: {tmp_path / 'file' / 'lessons'}")
    assert result.stderr.endswith(": Not a directory\n")
    shutil.copy(HOUSE / "solutions" / "00_collectives.py", tmp_path)
    result = labkit("build", "00", "--solutions", tmp_path, "--notebooks", tmp_path / "file")
    assert result.exit_code == 2
    assert result.stderr == f"labkit: {tmp_path / 'file' / '00_collectives'}: Not a directory\n"


OPENED = """
from pathlib import Path
from labkit import lessons
lessons.INSTALLED, lessons.CHECKED_OUT = lessons.CHECKED_OUT, Path("none")  # as where a wheel is installed
print(lessons.folder_to_open())
"""


@pytest.mark.parametrize("words", [["-m", "labkit.cli", "lessons", "lessons"], ["-c", OPENED]])
def test_lessons_that_did_not_fit_are_whole_once_there_is_room(tmp_path: Path, words: list[str]) -> None:
    """On a full disk, here one for files of 80,000 bytes, which some notebooks have and others exceed."""
    command = [sys.executable, *words]
    limited = ["prlimit", "--fsize=80000", *command]
    environment = {**os.environ, "PYTHONPATH": str(HOUSE)}
    for each, code in ((limited, {1, 2}), (command, {0})):
        done = subprocess.run(each, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode in code, done.stderr
        assert ("File too large" in done.stderr) == (each is limited)
        for path in (tmp_path / "lessons").rglob("*.ipynb"):
            given = HOUSE / "notebooks" / path.relative_to(tmp_path / "lessons")
            assert path.read_bytes() == given.read_bytes()
    written = {path.name for path in (tmp_path / "lessons").rglob("*.ipynb")}
    assert written == {path.name for path in (HOUSE / "notebooks").glob("*/*.ipynb")}


def test_check_says_what_to_do_and_writes_nothing(tmp_path: Path) -> None:
    plain = small_lesson.SOURCE[: small_lesson.SOURCE.index("# %% [markdown]\n# ### Exercise")]
    small_lesson.write(tmp_path, plain)
    places = ("--solutions", tmp_path, "--notebooks", tmp_path / "out")
    missing = labkit("build", "--check", *places)
    assert missing.exit_code == 1
    assert "does not exist" in missing.stderr
    assert "then run: labkit build 90_doubling" in missing.stderr
    assert not (tmp_path / "out").exists()
    assert labkit("build", *places).exit_code == 0
    agreed = labkit("build", "--check", *places)
    assert (agreed.exit_code, agreed.stdout) == (0, "1 of 1 notebooks are what their sources make\n")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("06_x.ipynb", None, "cannot be opened"),
        ("06_x.ipynb", "{", "is not a notebook"),
        ("06_x.ipynb", "[]", "is not a notebook"),
        ("essay.ipynb", '{"cells": []}', "the lesson's number"),
        ("99_x.ipynb", '{"cells": []}', "no lesson"),
    ],
)
def test_validate_refuses_what_is_no_lesson(
    tmp_path: Path, name: str, content: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    result = labkit("validate", tmp_path / name)
    assert result.exit_code == 2, result.output
    assert says in result.stderr


@pytest.mark.parametrize("name", ["2024-11-27.ipynb", "10min.ipynb", "my work.ipynb", "06_renamed.ipynb"])
def test_a_renamed_notebook_is_of_its_folders_lesson(tmp_path: Path, name: str) -> None:
    found = exercises_of(tmp_path / "06_tensor_parallel_ffn" / name)
    assert {exercise.lesson for exercise in found} == {"06"}


@pytest.mark.days
@pytest.mark.timeout(60)
def test_one_interrupt_ends_validate(tmp_path: Path) -> None:
    never = {"cell_type": "code", "source": "def ring_all_reduce(*given):\n    while True:\n        pass\n"}
    notebook = tmp_path / "00_x.ipynb"
    notebook.write_text(json.dumps({"cells": [never]}))
    command = [sys.executable, "-m", "labkit.cli", "validate", str(notebook)]
    with subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            while not list(tmp_path.glob("labkit-check-*/*.begun")):
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 1
            told = [line for line in process.stderr.read().splitlines() if line]
            assert told == ["checking 00.ring-all-reduce, 1 of 4 exercises", "Aborted!"]
        finally:
            process.kill()


@pytest.mark.days
def test_what_this_machine_cannot_check_is_told_in_a_line(tmp_path: Path) -> None:
    """And which exercise is waited for before that."""
    answer = {"cell_type": "code", "source": "def ring_all_reduce(*given):\n    pass\n"}
    notebook = tmp_path / "00_x.ipynb"
    notebook.write_text(json.dumps({"cells": [answer]}))
    command = [sys.executable, "-m", "labkit.cli", "validate", "--json", str(notebook)]
    here = {**os.environ, "OMP_NUM_THREADS": "many"}
    done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=50)
    assert done.returncode == 2
    assert done.stdout == ""
    begun, why = done.stderr.splitlines()[-2:]  # libgomp has told of it in its own words
    assert begun == "checking 00.ring-all-reduce, 1 of 4 exercises"
    assert why.startswith("labkit: this machine could not check it, whatever was written: OMP_NUM_THREADS")


@pytest.mark.days
def test_doctor_as_json_and_as_a_table() -> None:
    told = json.loads(labkit("doctor", "--json").stdout)
    topics = {finding["topic"]: finding for finding in told["findings"]}
    assert {"torch", "devices", "backends", "cores", "memory", "ranks", "sandbox", "Slurm", "browser"} <= set(
        topics
    )
    assert topics["backends"]["state"] == "ok"
    table = labkit("doctor")
    assert table.exit_code == (1 if any(f["state"] == "failed" for f in told["findings"]) else 0)
    assert all(topic in table.stdout for topic in topics)


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--part", "ranks"], "give --prove with it"), (["--prove", "--site", "leonardo"], "without --prove")],
)
def test_doctor_with_options_that_do_not_go_together(words: list[str], says: str) -> None:
    done = labkit("doctor", *words)
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.mark.days
@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["doctor", "--json"], "No usable temporary directory"),
        (["lab"], "labkit: no temporary folder can be made"),
    ],
)
def test_no_folder_for_temporary_files(words: list[str], says: str) -> None:
    """All of the machine can be read here, and nothing be written."""
    alone = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--die-with-parent"]
    command = [*alone, sys.executable, "-m", "labkit.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("longer", [0, 1])
def test_a_temporary_folder_with_too_long_a_path_is_told(
    monkeypatch: pytest.MonkeyPatch, longer: int
) -> None:
    """A worker of a data loader hands a tensor on in this way, and does not come to an end otherwise."""
    hands_on = "from multiprocessing.resource_sharer import DupFd; DupFd(0)"
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        folder = Path(short, "x" * (LONGEST_FOLDER + longer - len(short) - 1))
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        (finding,) = probe_temporary_folder()
        assert ("data loaders" in finding.says) == bool(longer)
        assert finding.state in ("ok", "note"), "ranks go"
        here = {**os.environ, "TMPDIR": str(folder)}
        worker = subprocess.run([sys.executable, "-c", hands_on], env=here, stderr=subprocess.PIPE, text=True)
        assert ("AF_UNIX path too long" in worker.stderr) == bool(longer), worker.stderr


def test_doctor_goes_on_where_one_thing_cannot_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit import doctor

    def probe_shared_memory() -> list[doctor.Finding]:
        raise ValueError("not as on other hosts")

    def probe_course() -> list[doctor.Finding]:
        return [doctor.Finding("this course", "ok", "so")]

    monkeypatch.setattr(doctor, "PROBES", (probe_shared_memory, probe_course))
    done = labkit("doctor", "--json")
    assert [(one["topic"], one["state"], one["says"]) for one in json.loads(done.stdout)["findings"]] == [
        ("shared memory", "note", "could not be looked at: ValueError: not as on other hosts"),
        ("this course", "ok", "so"),
    ]
    assert done.exit_code == 0


def test_doctor_knows_which_slurm_is_too_old() -> None:
    """By what `sinfo --version` tells, in Slurm's own packages and in Debian's."""
    assert "no --overlap" in slurm_too_old("slurm 20.02.7")
    assert "slurm-wlm 19.05.5 is older than 20.11" in slurm_too_old("slurm-wlm 19.05.5")
    for told in ("slurm 20.11.0", "slurm-wlm 22.05.8", "slurm 24.05.1-1", "unheard of"):
        assert slurm_too_old(told) == ""


def test_doctor_knows_which_torch_is_tested() -> None:
    from labkit.doctor import TESTED_TORCH

    pinned = next(
        line for line in (HOUSE / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
    )
    assert pinned.startswith(f"torch=={TESTED_TORCH}.")
