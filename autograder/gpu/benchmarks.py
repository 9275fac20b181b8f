"""The benchmarks that run on GPUs, each in a process of its own; benchmarks/results keeps their rows too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from autograder.grade.reference import REPOSITORY
from labkit.prove.result import Results, State

STATES: dict[bool | None, State] = {None: "measured", True: "passed", False: "failed"}
NOT_HERE = 77  # with which a benchmark ends that cannot measure here: benchmarks/_common.py
_SECONDS = 120  # for one benchmark
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "offload": (),
    "recompute": ("--device", "cuda", "--rounds", "10"),
    "tensor_parallel": ("--device", "cuda", "--rounds", "15"),
    "sharding": ("--device", "cuda", "--rounds", "15"),
}


def main(results: Results) -> None:
    """A row for each comparison: passed where the target was met."""
    for name, options in BENCHMARKS.items():
        _measure(results, name, options)


def _measure(results: Results, name: str, options: tuple[str, ...]) -> None:
    command = [sys.executable, f"benchmarks/{name}.py", "--json", *options]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        results.add(name, "failed", f"not finished after {_SECONDS} s")
        return
    said = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode:
        last = said[-1] if said else f"status {done.returncode}"
        results.add(name, "skipped" if done.returncode == NOT_HERE else "failed", last[:300])
        return
    for row in json.loads(done.stdout.decode().strip().splitlines()[-1])["rows"]:
        _told(results, name, row)


def _told(results: Results, name: str, row: Mapping[str, Any]) -> None:
    peer = f" against {row['peer']:.4g} ({row['peer_name']}), {row['ratio']:.2f} times" if row["peer"] else ""
    says = f"{row['ours']:.4g} {row['unit']}{peer}; {row['note']}"
    state = STATES[row["met"]]
    numbers = {"ours": row["ours"], "ratio": row["ratio"] or 0.0}
    results.add(f"{name}: {row['name']}", state, says, **numbers)
