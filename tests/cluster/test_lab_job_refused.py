"""`labkit lab --slurm` refuses what is wrong whatever Slurm there is, before it asks any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120), pytest.mark.days()]


def test_options_about_jobs_without_a_job_are_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "labkit.cli", "lab", "--root", str(tmp_path / "no"), "--gpus", "2"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "--gpus would be for a job: --slurm is not there" in told.stderr


def test_less_than_no_idle_minutes_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "labkit.cli", "lab", "--root", str(tmp_path), "--slurm", "--idle", "-1"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2
    assert "'--idle': -1.0 is not in the range x>=0" in told.stderr


@pytest.mark.parametrize("words", [["--port", "8888"], ["--ip", "0.0.0.0"], ["--no-browser"]])
def test_options_that_a_job_does_not_have_are_refused(tmp_path: Path, words: list[str]) -> None:
    """Also with the default's own value: who gives it expects something of it."""
    command = [sys.executable, "-m", "labkit.cli", "lab", "--root", str(tmp_path / "no"), "--slurm", *words]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2
    assert f"{words[0]} would be for a JupyterLab on this machine" in told.stderr


def test_what_needs_no_slurm_to_be_wrong_is_told_first(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "labkit.cli", "lab", "--slurm"]
    for words, says in {
        ("--root", "/nonexistent"): "no folder /nonexistent; give one that exists with --root",
        ("--time", "1h"): "expected a time such as 01:30:00 (hours:minutes:seconds) and found '1h'",
        ("--time", "0"): "a time of 0 means no limit to Slurm",
    }.items():
        told = subprocess.run(
            [*command, "--root", str(tmp_path), *words],
            env={**os.environ, "SLURM_CONF": "/nonexistent"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert told.returncode == 2
        assert told.stderr.startswith(f"labkit: {says}"), told.stderr


@pytest.mark.parametrize("words", [["--slurm"], ["--stop"]])
def test_slurms_commands_without_its_configuration_are_told(tmp_path: Path, words: list[str]) -> None:
    """As on a machine that has the packages and is in no cluster."""
    squeue = tmp_path / "squeue"
    told_by_slurm = "squeue: fatal: Could not establish a configuration source"
    squeue.write_text(f"#!/bin/sh\necho '{told_by_slurm}' >&2\nexit 1\n")
    squeue.chmod(0o755)
    command = [sys.executable, "-m", "labkit.cli", "lab", *words, "--root", str(tmp_path)]
    path = f"{tmp_path}:{os.environ['PATH']}"
    told = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 2
    assert told.stderr.startswith("labkit: squeue is here, but no configuration of Slurm's: this machine is")
