"""Forbidden names refuse inside the block, in modules loaded before and in those loaded only then."""

import subprocess
import sys
from types import ModuleType

import pytest
import torch

from labkit.checks.forbidden import ForbiddenCall, forbidding


def test_a_loaded_module_refuses_and_recovers():
    with forbidding(["torch.sum", "torch.not_there"]), pytest.raises(ForbiddenCall, match=r"torch\.sum"):
        torch.sum(torch.ones(2))
    assert torch.sum(torch.ones(2)) == 2


LATER = """
import sys
from labkit.checks.forbidden import ForbiddenCall, forbidding
with forbidding(["colorsys.rgb_to_hsv"]):
    assert "colorsys" not in sys.modules, "watching must not import"
    from colorsys import rgb_to_hsv
    try:
        rgb_to_hsv(0, 0, 0)
    except ForbiddenCall as refusal:
        print(refusal)
import colorsys
print(colorsys.rgb_to_hsv(0, 0, 0))
"""


def test_a_module_imported_inside_refuses_and_recovers():
    done = subprocess.run(
        [sys.executable, "-c", LATER], capture_output=True, text=True, timeout=60, check=True
    )
    assert "colorsys.rgb_to_hsv" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[1] == "(0.0, 0.0, 0)"


OPTIMIZER = """
import sys, torch
import torch.distributed.device_mesh as mesh
from labkit.checks.forbidden import ForbiddenCall, forbidding
with forbidding(["torch.distributed.device_mesh.DeviceMesh", "torch.distributed.DeviceMesh"]):
    assert "torch._dynamo" not in sys.modules, "what torch loads late is to be loaded inside"
    torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    for use in (lambda: mesh.DeviceMesh("cpu", [0]), lambda: type("Own", (mesh.DeviceMesh,), {})):
        try:
            use()
        except ForbiddenCall as refusal:
            print(refusal)
print(type("Own", (mesh.DeviceMesh,), {}).__name__, "__init_subclass__" in vars(mesh.DeviceMesh))
"""


@pytest.mark.days
def test_a_class_refuses_and_stays_a_class_for_what_torch_loads_late():
    done = subprocess.run(
        [sys.executable, "-c", OPTIMIZER], capture_output=True, text=True, timeout=100, check=True
    )
    first, second, after = done.stdout.splitlines()
    assert "torch.distributed" in first
    assert "torch.distributed" in second
    assert after == "Own False"


def test_a_class_that_inherits_its_beginning_is_as_it_was():
    class Base:
        def __init__(self) -> None:
            self.began = True

    class Inherits(Base):
        pass

    module = ModuleType("made_up")
    module.Inherits = Inherits  # type: ignore[attr-defined]
    sys.modules["made_up"] = module
    try:
        with forbidding(["made_up.Inherits"]):
            with pytest.raises(ForbiddenCall, match=r"made_up\.Inherits"):
                Inherits()
            assert Base().began
        assert Inherits().began
        assert "__init__" not in vars(Inherits)
    finally:
        del sys.modules["made_up"]
