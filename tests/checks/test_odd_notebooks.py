"""Notebooks as honest people write them: each must give what running it from top to bottom gives, or say why
it does not.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from labkit.checks import registry
from labkit.checks.judge import not_attempted
from labkit.checks.rank import load_student, student_error
from labkit.checks.source.notebook import BadNotebook, live_cells, read_cells
from labkit.checks.source.submission import Cell, Submission, collect

# The cells, each of which ends in `Made() == 6`.
ODD = {
    "helpers in other cells, below and above": [
        "def Made(): return two() * three()",
        "def two(): return 2",
        "three = lambda: 3",
    ],
    "classes that inherit across cells": [
        "class Base:\n    k = 2",
        "class Middle(Base):\n    j = 3",
        "class Made(Middle, int):\n    def __new__(cls): return int(cls.k * cls.j)",
    ],
    "a dataclass and its default": [
        "from dataclasses import dataclass, field",
        "@dataclass(frozen=True)\nclass Config:\n    a: int = 2\n"
        "    b: list = field(default_factory=lambda: [3])",
        "def Made(c=Config): return c().a * c().b[0]",
    ],
    "a named tuple, an enum, a type of one's own": [
        "from typing import NamedTuple, NewType\nfrom enum import IntEnum, auto\nSize = NewType('Size', int)",
        "class Pair(NamedTuple):\n    a: Size\n    b: Size",
        "class Kind(IntEnum):\n    A = auto()\n    B = auto()",
        "def Made(): return Pair(Kind.B, 3).a * 3",
    ],
    "aliases of types": [
        "from collections.abc import Callable\nShape = tuple[int, ...]\nRun = Callable[[Shape], int]",
        "def Made(run: Run = lambda s: s[0] * s[1]):\n    shape: Shape = (2, 3)\n    return run(shape)",
    ],
    "constants from constants": [
        "RANKS = 2\nWIDTHS = [3, 4]\nHALF = max(1, min(WIDTHS)) * len(WIDTHS)",
        "def Made(): return HALF",
    ],
    "a device as everybody writes it": [
        "import torch\ndevice = torch.device('cuda' if torch.cuda.is_available() and False else 'cpu')",
        "def Made(): return 6 if device.type == 'cpu' else 0",
    ],
    "decorators of one's own": [
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def inner():\n"
        "        return 2 * f()\n    return inner",
        "@twice\n@functools.cache\ndef Made(): return 3",
    ],
    "everything of labkit": ["from labkit import *\nimport labkit.theory as theory", "def Made(): return 6"],
    "an import that may fail": [
        "try:\n    import not_there\nexcept ImportError:\n    not_there = None",
        "def Made(): return 6 if not_there is None else 0",
    ],
    "an import that may fail, and says so": [
        "try:\n    from not_there import six\nexcept ImportError as e:\n    print('no', e)\n    six = 6",
        "def Made(): return six",
    ],
    "pictures": [
        "import matplotlib.pyplot as plt\nplt.rcParams['figure.dpi'] = 90\nplt.plot([1, 2])\nplt.show()",
        "def Made():\n    '''Drawn above.'''\n    return 6",
    ],
    "magics and commands": [
        "%matplotlib inline\n!ls\n%load_ext autoreload\nfiles = !ls\nK = 6\n?print",
        "def Made(): return K",
    ],
    "a cell that is timed": ["%%time\nK = 2\ndef Made():\n    return 3 * K"],
    "a cell whose output is caught": [
        "%%capture out\n# helper\ndef three(): return 3",
        "def Made(): return 2 * three()",
    ],
    "a method put into a class later": [
        "class Made(int):\n    def __new__(cls): return cls.value(cls)",
        "def value(cls): return 6",
        "Made.value = value",
    ],
    "a name of an earlier exercise used anew": [
        "def helper(): return 'old'\ndef First(): return helper()",
        "def helper(): return 6",
        "def Made(): return helper()",
    ],
    "cells in another order": ["def Made(): return LATER * three()", "def three(): return 3", "LATER = 2"],
    "notes in a code cell": ["# Plan\n\nThis is *not* Python: it's a plan!", "def Made(): return 6"],
    "a draft that is not finished": ["def Made(:", "def Made(): return 6", "def other(x) return"],
    "tabs": ["def Made():\n\tif True:\n\t\treturn 6"],
    "line ends of Windows": ["K = 2\r\ndef Made():\r\n    return 3 * K\r\n"],
    "names that are not ASCII": [
        "größe = 2\nπ_ish = 3\ndef Größe(): return größe",
        "def Made(): return π_ish * Größe()",
    ],
    "names in other shapes of letters": ["ﬁrst = 6", "def Made(): return first"],
    "seeds, precision and threads for all": [
        "import torch\ntorch.manual_seed(0)\ntorch.set_num_threads(1)\ntorch.set_printoptions(precision=3)",
        "def Made(): return 2 * torch.ones(3).sum().item()",
    ],
    "a counter": ["calls = 5\ndef Made():\n    global calls\n    calls += 1\n    return calls"],
    "several at once": ["a, (b, *rest) = 1, (2, 3)\nc = d = rest[0] * b", "def Made(): return c"],
    "a dictionary that is filled": ["TABLE = {}\nTABLE['six'] = 6", "def Made(): return TABLE['six']"],
    "a switch": ["FAST = True\nif FAST:\n    def Made(): return 6\nelse:\n    def Made(): return 7"],
    "for scripts": ["def Made(): return 6\nif __name__ == '__main__':\n    print(Made())"],
    "a cell that waits": [
        "import asyncio\nawait asyncio.sleep(0)\nasync def later(): return 6",
        "def Made(): return 6",
    ],
    "a timed line": ["%time K = 6\n%time -q L = 0", "def Made(): return K + L"],
    "what looks like a magic beside magics": [
        "%load_ext autoreload\nK = (13\n% 7)\nTEXT = '''\n!ls\nwhy?\n'''\nL = K - 6  # ok?\nfiles = !ls",
        "def Made(): return K + L if TEXT == '\\n!ls\\nwhy?\\n' else 0",
    ],
    "a command over two lines": ["!pip install -q \\\n    nothing\nK = 6", "def Made(): return K"],
    "copied with its prompts": [">>> K = 6\n>>> def Made():\n...     return K\n"],
    "indented as a whole": ["    K = 6\n    def Made():\n        return K\n"],
    "only where it is the program": [
        "if __name__ == '__main__':\n    def helper(): return 6",
        "def Made(): return helper()",
    ],
    "a list and a table that are filled": [
        "ITEMS = []\nITEMS.append(2)\nITEMS.extend([1, 3])\nTABLE = dict(a=1)",
        "TABLE.update(a=0, b=len(ITEMS))\nTABLE.setdefault('b', 7)",
        "def Made(): return sum(ITEMS) + TABLE['a'] + TABLE['b'] - 3",
    ],
    "a method set by name": [
        "class Made(int):\n    def __new__(cls): return cls.value(cls)",
        "def value(cls): return 6\nsetattr(Made, 'value', value)",
    ],
    "variants by type": [
        "from functools import singledispatch\n@singledispatch\ndef area(x): return 0",
        "@area.register\ndef _(x: int): return 2 * x",
        "def Made(): return area(3)",
    ],
    "tables of the standard library": [
        "import torch\nfrom collections import *\nfrom types import SimpleNamespace",
        "COUNTS = Counter('aab')\nT = defaultdict(int)\nT['a'] += 2\nC = SimpleNamespace(k=2)",
        "D = deque([1])\nSIZE, W = torch.Size([1, 2]), torch.tensor([1.0, 2.0])",
        "def Made(): return COUNTS['a'] + T['a'] + C.k + len(D) + SIZE.numel() - int(W.sum())",
    ],
    "sums over other tables": [
        "A = [2, 1]\nK = sum(a * b for a, b in zip(A, [2, 2]))",
        "def Made(): return K",
    ],
    "a star in the middle": ["from math import *\nK = 2", "def Made(): return floor(3.5) * K"],
}


def loaded(sources: list[str]) -> object:
    cells = [Cell(f"cell {number}", source) for number, source in enumerate(sources, 1)]
    submission = collect(cells, "06.made", ["Made"])
    return load_student(Submission.from_json(json.loads(json.dumps(submission.to_json()))))


@pytest.mark.parametrize("odd", ODD)
def test_it_gives_what_the_notebook_gives(odd: str) -> None:
    assert vars(loaded(ODD[odd]))["Made"]() == 6


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a statement of Python 3.12")
def test_a_type_statement() -> None:
    assert (
        vars(loaded(["type Shape = tuple[int, ...]", "def Made(s: Shape = (6,)): return s[0]"]))["Made"]()
        == 6
    )


def test_what_a_notebook_does_to_libraries_is_not_done_on_ranks() -> None:
    """Only what it makes is collected: this would hold points of a rank that needs the import."""
    submission = collect(
        [Cell("cell 1", "import torch\ntorch.backends.cudnn.benchmark = True\ndef Made(): return torch")],
        "06.made",
        ["Made"],
    )
    assert [statement.first_line for statement in submission.statements] == [1, 3]


@pytest.mark.parametrize(
    "work",
    [
        *("K = sum(compute())", "K = [n for n in compute()]", "K = dict(a=compute())", "K = f'{compute()}'"),
        *("for K in range(7): pass", "with open('x') as file: K = file.read()", "(K := 6)"),
    ],
)
def test_what_is_left_out_is_named_where_it_is_missed(work: str) -> None:
    cells = [Cell("cell 1", f"def compute(): return [6]\n{work}"), Cell("cell 2", "def Made(): return K")]
    submission = collect(cells, "06.made", ["Made"])
    with pytest.raises(NameError) as missed:
        submission.load().Made()
    told = str(student_error(missed.value, submission.left_out))
    assert "cell 1, line 2" in told
    assert "write it as one of these" in told


@pytest.mark.parametrize(
    "work",
    ["Made = compute(Made)", "with open('x'):\n    def Made(): return 6", "for _ in (1,):\n    Made = 1"],
)
def test_an_answer_that_is_left_out_is_named(work: str) -> None:
    """Found by the cell it was handed out in, or not at all: both times where it stands is told."""
    exercise = registry.exercise("06.copy-to-tensor-parallel")
    name, source = exercise.names[0], work.replace("Made", exercise.names[0])
    above = "def compute(f=None): return f"
    cells = [Cell("cell 1", above), Cell("cell 2", source, exercise.id)]
    with pytest.raises(AttributeError) as missed:
        getattr(collect(cells, exercise.id, exercise.names).load(), name)
    submission = collect([cells[0], Cell("cell 2", source)], exercise.id, exercise.names)
    report = not_attempted(exercise, submission)
    assert report.verdict == "error"
    for told in (str(student_error(missed.value, submission.left_out)), report.rows[0].seen):
        assert "cell 2, line" in told
        assert "write it as one of these" in told


@pytest.mark.parametrize(
    "work",
    [
        "for n in range(2):\n    TABLE[n] = n",
        "TABLE = compute()",
        "TABLE.append(compute())",
        "TABLE[0].x = compute()",
    ],
)
def test_work_on_what_is_collected_is_told(work: str) -> None:
    """Before its last definition it made no difference."""
    made, used = "TABLE = []\ndef compute(): return 6", "def Made(): return TABLE"
    later = collect([Cell("cell 1", made), Cell("cell 2", work), Cell("cell 3", used)], "06.made", ["Made"])
    assert [note.partition(" by")[0] for note in later.notes] == ["TABLE is set or changed in cell 2, line 1"]
    sooner = collect([Cell("cell 1", work), Cell("cell 2", made), Cell("cell 3", used)], "06.made", ["Made"])
    assert sooner.notes == []


def test_cells_are_those_that_were_typed() -> None:
    """The kernel keeps them rewritten too: `%%time` and what stands below it as one call. Saved are these."""
    shell = InteractiveShell.instance()
    try:
        for source in ("%%time\ndef three(): return 3", "%time K = 2", "def Made(): return K * three()"):
            shell.run_cell(source, store_history=True)
        made = type("Made", (), {"__module__": "__main__"})
        submission = collect(live_cells(made), "06.made", ["Made"])
    finally:
        InteractiveShell.clear_instance()
    assert vars(submission.load())["Made"]() == 6


@pytest.mark.parametrize(
    "source",
    [
        "from functools import partial\ndef six(n): return n\nMade = partial(six, 6)",
        "import operator\nMade = operator.methodcaller",
        "from textwrap import dedent as Made",
    ],
)
def test_what_a_cell_makes_of_other_modules_is_found_in_the_cells(source: str) -> None:
    """As grading does, which has nothing but the cells."""
    shell = InteractiveShell.instance()
    try:
        shell.run_cell(source, store_history=True)
        cells = live_cells(shell.user_ns["Made"])
    finally:
        InteractiveShell.clear_instance()
    submission = collect(cells, "06.made", ["Made"])
    assert submission.found
    assert "Made" in vars(submission.load())


def test_without_a_notebook_what_has_no_source_is_told() -> None:
    with pytest.raises(BadNotebook, match=r"the source of functools\.partial.* is not to be found"):
        live_cells(partial(print, 6))


def test_a_file_with_a_mark_of_byte_order_is_read(tmp_path: Path) -> None:
    """As some editors of Windows write them; nbgrader reads those too."""
    notebook = {"cells": [{"cell_type": "code", "source": "K = 6"}]}
    path = tmp_path / "06_x.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8-sig")
    assert [cell.source for cell in read_cells(path)] == ["K = 6"]
