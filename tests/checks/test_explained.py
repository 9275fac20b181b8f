"""What a check adds to errors whose own words do not say what to do."""

from __future__ import annotations

import pytest

from labkit.checks import registry
from labkit.checks.practice import check_cells
from labkit.checks.source.submission import Cell

BANDWIDTH = registry.exercise("00.bus-bandwidth")
LAYER = registry.exercise("06.copy-to-tensor-parallel")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "def bus_bandwidth(S, t, n=2): return S",
            "and yours is bus_bandwidth(S, t, n=2): leave its first line",
        ),
        ("def bus_bandwidth(): return 1", "and yours is bus_bandwidth(): leave"),
        ("bus_bandwidth = max", ""),
        ("def bus_bandwidth(**more): yield 1", "bus_bandwidth has a yield: it returns a generator"),
        ("def bus_bandwidth(**more): return (1,)", ""),
        ("def bus_bandwidth(num_bytes, **more): return input()", "input() cannot ask anybody on a rank"),
        ("def bus_bandwidth(**more): raise MemoryError", "A MemoryError without words"),
        ("def other(a): ...\ndef bus_bandwidth(**more): return bus_bandwidth(1)", ""),
    ],
)
def test_an_error_of_few_words_is_explained(source: str, told: str) -> None:
    report = check_cells(BANDWIDTH, [Cell("cell 1", source)])
    assert report.points == 0
    assert told in report.notes[0]
    assert bool(told) == (len(report.notes) == 2), "beside what may not be imported"


def test_an_error_that_is_told_has_no_usual_cause_of_wrong_values() -> None:
    source = "def bus_bandwidth(S, t, n): return S"
    (limits,) = (row for row in check_cells(BANDWIDTH, [Cell("cell 1", source)]).rows if row.name == "limits")
    assert "unexpected keyword argument" in limits.seen
    assert limits.usual_cause == ""
    source = "def bus_bandwidth(num_bytes, seconds, world_size): return 0"
    (limits,) = (row for row in check_cells(BANDWIDTH, [Cell("cell 1", source)]).rows if row.name == "limits")
    assert limits.usual_cause


def test_a_method_is_named_with_its_class() -> None:
    source = "class CopyToTensorParallel:\n    @staticmethod\n    def apply(x): ..."
    report = check_cells(LAYER, [Cell("cell 1", source)])
    assert "yours is CopyToTensorParallel.apply(x): leave" in report.notes[0]
