"""Forbidden names refuse inside the block, in modules loaded before and in those loaded only then."""

import subprocess
import sys

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
