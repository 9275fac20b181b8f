"""The container files agree and hold nothing of the grader's; the environment needs no network."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CONTAINER = REPOSITORY / "cluster" / "container"

OFFLINE = """
import socket
import labkit
import torch
import torch.distributed as dist

def total(group):
    x = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(x, group=group)
    return x.item()

try:
    socket.create_connection(("192.0.2.1", 80), timeout=2)
except OSError as error:
    print(error.strerror)
print(labkit.launch(total, ranks=2).results)
"""


def copied_by_apptainer() -> dict[str, str]:
    """What labkit.def copies -> where to."""
    text = (CONTAINER / "labkit.def").read_text().split("%files")[1].split("%post")[0]
    return dict(line.split() for line in text.splitlines() if line.strip())


def copied_by_docker() -> dict[str, str]:
    copied = {}
    for line in re.findall(r"^COPY (.*)$", (CONTAINER / "Dockerfile").read_text(), re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            copied[source] = target + Path(source).name if target.endswith("/") else target
    return copied


def test_both_images_hold_the_same() -> None:
    assert copied_by_apptainer() == copied_by_docker()
    for source in copied_by_docker():
        assert (REPOSITORY / source).exists(), source


def test_nothing_of_the_grader_is_sent_to_the_builder() -> None:
    """Docker's rules, as far as these lines use them: the last line that fits decides."""
    lines = [
        line
        for line in (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    tracked = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    sent = {path for path in tracked.stdout.splitlines() if not ignored(path, lines)}
    assert {path.split("/")[0] for path in sent} == {source.split("/")[0] for source in copied_by_docker()}
    assert {path for path in sent if path.startswith("cluster/")} == {"cluster/container/install.sh"}


def ignored(path: str, lines: list[str]) -> bool:
    verdict = False
    for line in lines:
        pattern = line.removeprefix("!").removeprefix("**/")
        above = [path, *map(str, Path(path).parents)]
        if any(fnmatch.fnmatch(one, pattern) for one in above):
            verdict = not line.startswith("!")
    return verdict


@pytest.mark.days
def test_an_image_has_no_command_that_cannot_run(tmp_path: Path) -> None:
    """pyproject.toml names the grader's too. What is copied is installed as install.sh does it, but for the
    packages that it needs; then its own line takes the command away.
    """
    house = tmp_path / "labkit"
    house.mkdir()
    for source, target in copied_by_docker().items():
        place = house / Path(target).relative_to("/opt/labkit")
        if (REPOSITORY / source).is_dir():
            shutil.copytree(REPOSITORY / source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / source, place)
    programs = house / ".venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(house / ".venv")], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "-e", str(house)], check=True, timeout=150)
    ours = {"labkit", "autograder"}
    assert ours <= {path.name for path in programs.iterdir()}
    (removal,) = re.findall(r"^rm \.venv/.*$", (house / "install.sh").read_text(), re.MULTILINE)
    subprocess.run(["sh", "-euc", removal], cwd=house, check=True)
    assert ours & {path.name for path in programs.iterdir()} == {"labkit"}


@pytest.mark.sandbox
@pytest.mark.days(2)
def test_two_ranks_without_a_network(tmp_path: Path) -> None:
    """As on a compute node: a loopback and nothing else, on which the environment is found to be complete."""
    script = tmp_path / "offline.py"
    script.write_text(OFFLINE)
    apart = ["bwrap", "--unshare-net", "--die-with-parent", "--dev-bind", "/", "/"]
    done = subprocess.run(
        [*apart, sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()  # between them torch may say that nobody knows this host's name
    assert (printed[0], printed[-1]) == ("Network is unreachable", "[3.0, 3.0]")
    doctor = [*apart, sys.executable, "-m", "labkit.cli", "doctor"]
    told = subprocess.run(doctor, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stdout
