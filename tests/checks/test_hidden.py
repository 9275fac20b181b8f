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
    told = rules(BANDWIDTH, registry.exercises("00"))
    assert "labkit.theory.communication cannot be imported" in told
    assert "labkit.theory.communication.bus_bandwidth" not in told  # who cannot import it cannot call it


def test_a_check_fails_by_an_import_that_grading_would_refuse():
    (name,) = BANDWIDTH.names
    asks = "from labkit.theory.communication import bus_bandwidth as given"
    source = f"{asks}\ndef {name}(*a, **k): return given(*a, **k)"
    report = check_cells(BANDWIDTH, [Cell("cell 1", source)])
    assert report.points == 0
    assert "neither a check nor grading lets it be imported" in repr(report)
    assert rules(BANDWIDTH, registry.exercises("00")) in report.notes


def test_a_loaded_module_that_took_names_of_a_hidden_one_is_out_of_reach_too(monkeypatch):
    """As where the hidden one's file is empty: then it cannot be imported either, nor what took from it."""
    memory = importlib.import_module("labkit.theory.memory")
    footprint = importlib.import_module("labkit.theory.planning.footprint")
    kept = memory.training_memory
    monkeypatch.setattr(labkit.theory, "kept_by_name", kept, raising=False)
    with hiding(["labkit.theory.activations"]):
        for name in ("labkit.theory.memory", "labkit.theory.planning.footprint"):
            with pytest.raises(ImportError, match=r"labkit\.theory\.activations holds an answer"):
                importlib.import_module(name)
        with pytest.raises(ImportError, match=r"labkit\.theory\.activations"):
            from labkit.theory import training_memory  # noqa: F401
        assert not hasattr(labkit.theory, "kept_by_name")
        assert importlib.import_module("labkit.theory.models") is sys.modules["labkit.theory.models"]
    assert sys.modules["labkit.theory.memory"] is memory
    assert sys.modules["labkit.theory.planning.footprint"] is footprint
    assert labkit.theory.training_memory is kept
    assert labkit.theory.kept_by_name is kept


def test_a_file_beside_the_notebook_cannot_be_imported(tmp_path, monkeypatch):
    """It is not handed in; what is installed is found, also where the environment is below this folder."""
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (tmp_path / "my_helpers.py").write_text("K = 1")
    (installed / "some_package.py").write_text("K = 2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(installed), *sys.path])
    with hiding(()):
        with pytest.raises(ImportError, match="only the notebook is handed in"):
            importlib.import_module("my_helpers")
        assert importlib.import_module("some_package").K == 2
    assert importlib.import_module("my_helpers").K == 1
