"""`python -m autograder.gradebook.wheel FOLDER`: labkit and the released lessons as one wheel.

It is for students and hosted notebooks, and holds what the students' bundle holds: nothing of the grader's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from autograder.gradebook.release import write_bundle


def write_wheel(folder: Path) -> Path:
    """Build the wheel into `folder` and return its path. CalledProcessError when pip cannot."""
    with tempfile.TemporaryDirectory(prefix="labkit-wheel-") as root:
        bundle = Path(root) / "bundle"
        write_bundle(bundle)
        (bundle / "notebooks").rename(bundle / "labkit" / "released")
        (bundle / "cluster").rename(bundle / "labkit" / "cluster")
        built = Path(root) / "wheel"
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(built)]
        subprocess.run([*pip, str(bundle)], check=True, timeout=300)
        (wheel,) = built.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, folder / wheel.name))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    """Build the wheel into FOLDER."""
    wheel = write_wheel(folder)
    print(f'pip install "{wheel}[lab]" && labkit lab')


if __name__ == "__main__":
    main()
