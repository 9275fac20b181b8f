"""The folder for a node without a network, used in an environment that has torch and pip and nothing else."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.gpu import bundle
from labkit.hosts import gpu_count

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(gpu_count() > 0, reason="what a node without a GPU says"),
]
OF_THE_NODE = (
    *(
        "torch",
        "numpy",
        "sympy",
        "mpmath",
        "networkx",
        "fsspec",
        "filelock",
        "typing_extensions",
        "setuptools",
    ),
)


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for this Python."""
    folder = tmp_path_factory.mktemp("carried") / "bundle"
    num_bytes = bundle.make(folder, f"{sys.version_info.major}.{sys.version_info.minor}")
    assert num_bytes < bundle.MOST_BYTES
    return folder


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has torch, as a node does, with links to the files of ours; and no index to ask."""
    place = tmp_path_factory.mktemp("node") / "env"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=200)
    site = next(place.glob("lib/python*/site-packages"))
    for name in OF_THE_NODE:
        of_package = importlib.metadata.distribution(name)
        tops = {Path(file).parts[0] for file in of_package.files or ()} - {"..", "__pycache__"}
        for top in tops:
            target = Path(str(of_package.locate_file(top)))
            if target.exists() and not (site / top).exists():
                (site / top).symlink_to(target)
    return place / "bin" / "python"


def run(node: Path, carried: Path, *options: str) -> subprocess.CompletedProcess[str]:
    bare = {key: value for key, value in os.environ.items() if key in ("HOME", "PATH", "TMPDIR")}
    command = [str(node), "run.py", *options]
    environment = {**bare, "PIP_NO_INDEX": "1"}
    return subprocess.run(command, cwd=carried, env=environment, capture_output=True, text=True, timeout=400)


@pytest.mark.days(4)
def test_everything_is_collected_and_says_that_there_is_no_gpu(node: Path, carried: Path) -> None:
    parts = ("machine", "ranks", "tests", "references", "benchmarks")
    done = run(node, carried, *(word for part in parts for word in ("--part", part)))
    report = json.loads((carried / "gpu-report" / "report.json").read_text())
    found = [(r["part"], r["name"], r["state"], r["says"]) for r in report["results"]]
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{found}"
    tests = [f for f in found if f[0] == "tests" and f[1] != "collected"]
    assert len(tests) >= 15
    assert all(state == "skipped" and ("GPU" in says or "CUDA" in says) for *_, state, says in tests)
    assert [
        (state, "no GPU" in says) for part, _, state, says in found if part in ("references", "benchmarks")
    ] == [("skipped", True)] * 2


@pytest.mark.days
def test_what_is_wrong_is_said_in_a_line(node: Path, carried: Path) -> None:
    unknown = run(node, carried, "--part", "no-such-part")
    assert unknown.returncode == 2
    assert "expected one of machine, ranks" in unknown.stderr
    with pytest.raises(bundle.CannotBundle, match="expected an empty folder"):
        bundle.make(carried, "3.12")
