"""What grading hides is hidden from a check too, with a sentence."""

import importlib
import sys

import pytest

import labkit.theory
import labkit.theory.communication
from labkit.checks import registry
from labkit.checks.hidden import hidden_modules, hiding, rules
from labkit.checks.practice import check_cells
from labkit.checks.source.submission import Cell

HIDDEN = ("labkit.theory.communication",)
BANDWIDTH = registry.exercise("00.bus-bandwidth")


def test_a_loaded_module_is_out_of_reach_and_comes_back():
    there = labkit.theory.communication
    with hiding(HIDDEN):
        with pytest.raises(ImportError, match="holds an answer of this lesson"):
            importlib.import_module(HIDDEN[0])
        with pytest.raises(ImportError):
            from labkit.theory import communication  # noqa: F401
        assert not hasattr(labkit.theory, "communication")
    assert labkit.theory.communication is there
    assert sys.modules[HIDDEN[0]] is there


def test_names_that_a_package_hands_on_are_out_of_reach_too():
    with hiding(["labkit.theory.recipes"]), pytest.raises(ImportError, match=r"labkit\.theory\.recipes"):
        from labkit.theory import state_bytes  # noqa: F401


def test_the_list_is_the_lessons():
    assert hidden_modules("00") == HIDDEN
    told = rules(BANDWIDTH)
    assert "labkit.theory.communication cannot be imported" in told
    assert "labkit.theory.communication.bus_bandwidth" in told


def test_a_check_fails_by_an_import_that_grading_would_refuse():
    (name,) = BANDWIDTH.names
    asks = "from labkit.theory.communication import bus_bandwidth as given"
    source = f"{asks}\ndef {name}(*a, **k): return given(*a, **k)"
    report = check_cells(BANDWIDTH, [Cell("cell 1", source)])
    assert report.points == 0
    assert "neither a check nor grading lets it be imported" in repr(report)
    assert rules(BANDWIDTH) in report.notes
