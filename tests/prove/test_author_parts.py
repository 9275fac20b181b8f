"""The parts that need the solutions, tried where they can be without a GPU: on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from autograder.gpu import benchmarks, references
from labkit.checks import registry
from labkit.checks.practice import VISIBLE_SEED
from labkit.prove.result import Results, read_results

pytestmark = pytest.mark.timeout(180)


def test_a_reference_is_judged_where_it_is_put(tmp_path: Path) -> None:
    results = Results("references", tmp_path / "results")
    exercise = registry.exercise("06.column-parallel-linear")
    cases = exercise.cases(VISIBLE_SEED)[:1]
    references._judge(results, exercise, references.Place("gloo", "cpu"), cases)
    found = read_results(tmp_path / "results")
    assert [(r.name, r.state) for r in found] == [
        ("06.column-parallel-linear, gloo on cpu, 1 cases", "passed")
    ]


def test_a_check_leaves_gpus_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a student's does on a node with GPUs: here a rank that tried to take one would fail."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    results = Results("references", tmp_path / "results")
    exercise = registry.exercise("06.column-parallel-linear")
    references._judge(results, exercise, references.ON_CPU, exercise.cases(VISIBLE_SEED)[:1])
    assert [r.state for r in read_results(tmp_path / "results")] == ["passed"]


def test_a_device_that_is_not_there_is_told(tmp_path: Path) -> None:
    results = Results("references", tmp_path / "results")
    exercise = registry.exercise("06.column-parallel-linear")
    cases = exercise.cases(VISIBLE_SEED)[:1]
    references._judge(results, exercise, references.Place("gloo", "meta"), cases)
    assert [r.state for r in read_results(tmp_path / "results")] == ["failed"]


def test_what_cannot_be_on_gpus_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for name in references.NOT_ON_GPUS:  # all are names of exercises
        assert list(references._cases_of(registry.exercise(name))) == [references.ON_CPU]
    placed = references._cases_of(registry.exercise("06.column-parallel-linear"))
    assert {place: {case.ranks for case in cases} for place, cases in placed.items()} == {
        references.ON_NCCL: {2},
        references.ON_CPU: {4},
        references.SHARED: {4},
    }


@pytest.mark.days(10)
def test_a_benchmark_that_cannot_run_here_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    results = Results("benchmarks", tmp_path / "results")
    benchmarks.main(results)
    found = read_results(tmp_path / "results")
    assert {r.name: r.state for r in found} == dict.fromkeys(benchmarks.BENCHMARKS, "skipped")
    assert all("nothing was measured" in r.says for r in found)


def test_a_benchmark_that_fails_is_not_skipped_whatever_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "broken.py").write_text('raise SystemExit("install it: nothing was measured")')
    monkeypatch.setattr(benchmarks, "REPOSITORY", tmp_path)
    results = Results("benchmarks", tmp_path / "results")
    benchmarks._measure(results, "broken", ())
    assert [(r.name, r.state) for r in read_results(tmp_path / "results")] == [("broken", "failed")]
