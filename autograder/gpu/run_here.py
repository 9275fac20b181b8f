"""Runs what this folder was made for, on a node that reaches no network: `python3 run.py [options]`.

Needs Python with torch and numpy. Packages that this Python lacks are installed from wheels/ into site/:
nothing outside this folder is changed.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SITE = HERE / "site"


def lacking() -> "list[Path]":
    """The wheels of packages that this Python does not have."""
    found = []
    for wheel in sorted((HERE / "wheels").glob("*.whl")):
        try:
            importlib.metadata.version(re.sub("_", "-", wheel.name.split("-")[0]))
        except importlib.metadata.PackageNotFoundError:
            found.append(wheel)
    return found


def main() -> int:
    """Install what lacks, and run."""
    for needed in ("torch", "numpy"):
        try:
            importlib.metadata.version(needed)
        except importlib.metadata.PackageNotFoundError:
            sys.exit(
                f"{sys.executable} has no {needed}: run this with the Python that the node's torch is in"
            )
    sys.path.insert(0, str(SITE))
    if wheels := lacking():
        print(f"installing {len(wheels)} packages into {SITE}", flush=True)
        offline = ["--no-index", "--no-deps", "--quiet", "--disable-pip-version-check", "--target", str(SITE)]
        done = subprocess.run([sys.executable, "-m", "pip", "install", *offline, *map(str, wheels)])
        if done.returncode:
            sys.exit(f"pip could not install the wheels in {HERE / 'wheels'}: see above")
    paths = [str(HERE), str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    os.chdir(HERE)
    os.execve(sys.executable, [sys.executable, "-m", "autograder.gpu", *sys.argv[1:]], environment)


if __name__ == "__main__":
    sys.exit(main())
