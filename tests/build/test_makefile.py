"""`make` on a machine that has less, or other things, than ours; in a folder with a space."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "my clone"
    folder.mkdir()
    for name in ("Makefile", "lab.mk", "pyproject.toml", "constraints.txt"):
        shutil.copy(HOUSE / name, folder)
    return folder


def make(clone: Path, *words: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path, "HOME": str(clone)}
    return subprocess.run(
        ["make", *words], cwd=clone, env=environment, capture_output=True, text=True, timeout=100
    )


def script(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_error_says_which_pythons_were_found(clone: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("make", "sh", "grep", "rm", "tail", "touch"):
        (bare / tool).symlink_to(str(shutil.which(tool)))
    script(bare, "python3", "echo is 3.9.2")
    script(bare, "python3.12", "echo \"No module named 'ensurepip'\"; exit 1")
    done = make(clone, "env", path=str(bare))
    assert done.returncode == 2
    assert "Expected Python 3.11 or newer" in done.stderr
    assert "python3: is 3.9.2" in done.stderr
    assert "python3.12: No module named 'ensurepip'" in done.stderr
    assert "python3.11: " in done.stderr
    assert "PYTHON=" in done.stderr


@pytest.mark.days
def test_an_unsuitable_python_is_passed_over(clone: Path, tmp_path: Path) -> None:
    script(tmp_path / "bin", "python3", "echo is 3.9.2")
    script(tmp_path / "bin", "python3.13", f'exec "{sys.executable}" "$@"')
    done = make(clone, ".venv/.python", path=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert (clone / ".venv" / "bin" / "python").exists()


def test_an_installed_clone_is_not_installed_again_until_it_moves(clone: Path) -> None:
    stamps = clone / ".venv"
    (stamps / "bin").mkdir(parents=True)
    (stamps / "bin" / "python").symlink_to(sys.executable)
    (stamps / ".python").touch()
    for name in (".has-lab", ".has-all"):
        (stamps / name).write_text(f"{clone}\n")
    assert "pip install" not in make(clone, "--dry-run", "lab", "test").stdout
    moved = clone.rename(clone.parent / "moved here")
    assert "pip install" in make(moved, "--dry-run", "lab").stdout


def test_env_has_everything(clone: Path) -> None:
    """Here: in a students' bundle, which has lab.mk alone, it has what they need."""
    told = make(clone, "--dry-run", "env").stdout
    assert "grade,tensorboard,hub,site,test] into .venv" in told
    assert told.count("Installing") == 1


def test_a_lost_interpreter_is_replaced(clone: Path) -> None:
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").symlink_to("/nowhere/python3")
    (clone / ".venv" / ".python").touch()
    assert "-m venv" in make(clone, "--dry-run", "lab").stdout


def test_port_and_root_reach_the_command(clone: Path) -> None:
    told = make(clone, "--dry-run", "lab", "PORT=9000", "ROOT=/data/my work").stdout
    assert '--port "9000" --root "/data/my work"' in told
