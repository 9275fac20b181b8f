"""What a notebook's names lead to, as checks weigh it: set aside beforehand, it counts as held."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from labkit.checks.shared.held import bytes_kept
from labkit.checks.shared.holding import bytes_of_names, held_since, holding
from labkit.checks.source.submission import MODULE_NAME

pytestmark = pytest.mark.usefixtures("no_other_objects")

COUNT = 10_000


@pytest.fixture
def notebook() -> Iterator[Callable[[str], ModuleType]]:
    """Makes the module of a student's cells, as ranks have it."""

    def load(source: str) -> ModuleType:
        module = ModuleType(MODULE_NAME)
        vars(module).update(torch=torch, nn=nn, np=np, COUNT=COUNT)
        sys.modules[MODULE_NAME] = module
        exec(source, vars(module))
        return module

    yield load
    sys.modules.pop(MODULE_NAME, None)


PLACES = {
    "a class's attribute": "class Pool:\n    numbers = torch.zeros(COUNT)",
    "in a dict in a list": "kept = [{'all': torch.zeros(COUNT)}]",
    "a default argument": "def call(x=torch.zeros(COUNT)): return x",
    "a closure": "def outer():\n    x = torch.zeros(COUNT)\n    return lambda: x\ncall = outer()",
    "an object's attribute": "class Own: pass\nown = Own()\nown.x = torch.zeros(COUNT)",
    "a function's attribute": "def call(): pass\ncall.x = torch.zeros(COUNT)",
    "a slice of it": "x = torch.zeros(COUNT)[:10]",
    "an array": "x = np.zeros(COUNT, dtype=np.float32)",
    "a module of its own class": "class Own(nn.Linear): pass\nlayer = Own(COUNT, 1, bias=False)",
}


@pytest.mark.parametrize("place", PLACES)
def test_memory_of_a_name_is_found(place: str, notebook: Callable[[str], ModuleType]) -> None:
    notebook(PLACES[place])
    assert bytes_of_names() == 4 * COUNT


FREE = {
    "a small mask": "mask = torch.ones(64, 64, dtype=torch.bool)",
    "a layer that was handed in": "layers = [nn.Linear(COUNT, 1)]",
    "torch itself": "import torch.nn.functional as F",
    "a class of torch's": "Layer = nn.Linear",
}


@pytest.mark.parametrize("what", FREE)
def test_what_is_none_of_its_own_is_passed_over(what: str, notebook: Callable[[str], ModuleType]) -> None:
    notebook(FREE[what])
    assert bytes_of_names() == 0


POOL = """
class Pool:
    numbers = torch.zeros(COUNT)

def keep(x):
    Pool.numbers[: len(x)] = x
"""


def test_what_is_filled_later_counts_as_held(notebook: Callable[[str], Any]) -> None:
    module = notebook(POOL)
    before = holding()
    module.keep(torch.ones(100))
    assert held_since(before) == 4 * COUNT


def test_what_is_filled_later_counts_as_kept(notebook: Callable[[str], Any]) -> None:
    module, x = notebook(POOL), torch.ones(100)
    assert bytes_kept(lambda: lambda: module.keep(x)) >= 4 * COUNT
