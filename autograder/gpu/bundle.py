"""`python -m autograder.gpu.bundle DIR`: a folder to carry to a node that reaches no network.

It holds the tracked files of this checkout, and as wheels what a node with torch, numpy and pip may lack.
There `python3 run.py` installs what is lacking below the folder itself and runs `python -m autograder.gpu`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click

from autograder.grade.reference import REPOSITORY

MOST_BYTES = 40 * 2**20
LEFT_OUT = ("assets/", "notebooks/", "cluster/", "tests/browser/", "tests/cluster/", "tests/autograder/")
# What the course imports, with what these need. Not torch and numpy, which a node with GPUs has; nor
# matplotlib, which is large: nothing is drawn there.
PACKAGES = (
    *("ipython", "ipywidgets", "jupytext", "nbformat", "msgspec", "cloudpickle", "psutil", "safetensors"),
    *("click", "rich", "jinja2", "whatthepatch", "pytest", "pytest-timeout", "hypothesis"),
)
GLIBCS = (17, 24, 27, 28, 31, 34, 35)


class CannotBundle(Exception):
    """What was found, and what to do."""


def make(directory: Path, python: str) -> int:
    """Fill an empty folder and return its bytes. python: the node's version, such as "3.12"."""
    if directory.exists() and any(directory.iterdir()):
        raise CannotBundle(f"{directory}: expected an empty folder or none; remove it first")
    directory.mkdir(parents=True, exist_ok=True)
    _copy_tree(directory)
    _download(directory / "wheels", python)
    shutil.copy(Path(__file__).with_name("run_here.py"), directory / "run.py")
    num_bytes = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    if num_bytes > MOST_BYTES:
        raise CannotBundle(f"{directory}: expected at most {MOST_BYTES >> 20} MiB, found {num_bytes >> 20}")
    return num_bytes


def _copy_tree(directory: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True)
    if listed.returncode:
        raise CannotBundle(f"{REPOSITORY}: expected a git checkout; {listed.stderr.decode().strip()}")
    for name in listed.stdout.decode().split("\0"):
        if name and not name.startswith(LEFT_OUT) and (REPOSITORY / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, directory / name)


def _download(wheels: Path, python: str) -> None:
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBCS]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    asked = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
    pinned = ["-c", str(REPOSITORY / "constraints.txt"), "-d", str(wheels), *PACKAGES]
    done = subprocess.run([*command, *asked, *pinned], capture_output=True, text=True)
    if done.returncode:
        raise CannotBundle(f"pip found no wheels for Python {python}: {done.stderr.strip()[-600:]}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--python", default="3.12", show_default=True, help="The Python of the node, x86-64 Linux.")
def main(directory: Path, python: str) -> None:
    """Make DIRECTORY, to be carried to a node with GPUs and no network. It holds the solutions."""
    try:
        num_bytes = make(directory, python)
    except CannotBundle as problem:
        click.echo(problem, err=True)
        sys.exit(2)
    click.echo(f"{directory}: {num_bytes / 2**20:.1f} MiB. Copy it to the node and run there:")
    click.echo(f"    cd {directory.name} && python3 run.py")


if __name__ == "__main__":
    main()
