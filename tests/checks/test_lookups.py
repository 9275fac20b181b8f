"""What a student's code looks up by a name that is made when it runs."""

from __future__ import annotations

import pytest
import torch

from labkit.checks.source.submission import Cell, collect

EXERCISE = "06.copy-to-tensor-parallel"
MADE = 'pad = "_" * 2\n'


def answer(source: str) -> object:
    """What f() gives in a module that a student's cell is loaded as."""
    return collect([Cell("cell 1", source)], EXERCISE, ["f"]).load().f()


@pytest.mark.parametrize(
    "look_up",
    [
        'getattr(f, pad + "globals" + pad)',
        'getattr(f, pad + "closure" + pad)',
        'getattr(f, pad + "globals" + pad, None)',
        'functools.reduce(getattr, [pad + "self" + pad], [].append)',
        'setattr(f, pad + "code" + pad, None)',
        'getattr(f, Name(pad + "globals" + pad))',
    ],
)
def test_what_leads_out_of_an_answer_is_not_looked_up(look_up: str) -> None:
    lying = "class Name(str):\n    __hash__ = lambda self: 0\n    __eq__ = lambda self, other: False\n"
    with pytest.raises(AttributeError, match=r"no exercise needs __\w+__"):
        answer(f"import functools\n{MADE}{lying}def f(): return {look_up}")


def test_what_functions_are_asked_for_is_its_default() -> None:
    names = ("__self__", "__func__", "__wrapped__", "__closure__", "__code__")
    assert answer(f"def f(): return [getattr([].append, name, 7) for name in {names}]") == [7] * len(names)


def test_everything_else_is_looked_up_as_ever() -> None:
    assert answer("def f(): return getattr(1j, 'imag'), getattr(1, 'x', 7), getattr(f, '__' + 'name__')") == (
        1.0,
        7,
        "f",
    )
    changed = "import torch\ndef f():\n    x = torch.ones(2)\n    setattr(x, 'kept', 3)\n    return x.kept, "
    assert answer(changed + "getattr(x, 'no', None), getattr(torch, 'float64')") == (3, None, torch.float64)
    with pytest.raises(AttributeError, match="has no attribute 'x'"):
        answer("def f(): return getattr(1, 'x')")
