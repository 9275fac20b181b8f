"""What is collected from a student's cells, and what is left out."""

import json
import time
from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.checks.rank import StudentLoadError, load_student, student_error
from labkit.checks.source.notebook import BadNotebook, cells_of, grade_id, read_cells
from labkit.checks.source.statements import needed_for, parse_cell
from labkit.checks.source.submission import Cell, Submission, collect


def collected(*sources: str, name: str = "Made", **options) -> Submission:
    cells = [Cell(f"cell {i}", source) for i, source in enumerate(sources, 1)]
    submission = collect(cells, "06.made", [name], **options)
    return Submission.from_json(json.loads(json.dumps(submission.to_json())))


def test_only_what_the_name_needs_is_executed():
    submission = collected("import not_there\nK = 3", "def other(): return missing", "class Made:\n    k = K")
    assert submission.load().Made.k == 3


def test_a_helper_may_stand_below():
    submission = collected("def Made(): return helper()", "K = 2", "def helper(): return K")
    assert submission.load().Made() == 2


def test_the_last_definition_counts_and_an_alias_needs_the_one_before():
    assert collected("def Made(): return 1", "def Made(): return 2").load().Made() == 2
    submission = collected("from functools import partial\ndef Made(x): return x", "Made = partial(Made, 5)")
    assert submission.load().Made() == 5


def test_an_import_repeated_further_down_leaves_the_first_in_place():
    """An annotation or a base class is looked up at once, where the last definition does not stand yet."""
    again = "from dataclasses import Field"
    assert collected(again, "def Made(x: Field): return 1", again).load().Made(0) == 1
    assert collected(again, "class Made(Field): pass", f"{again}\nprint(Field)").load().Made


def test_a_text_names_nothing_but_in_an_annotation():
    """A key of a dict may be called as something that a cell of the lesson has shown."""
    shown = "flat = print() or [1, 2]\nsaved = flat[0]"
    submission = collected(shown, "def Made(): return {'saved': 1}['saved'] + len(dict(saved=1))")
    assert submission.load().Made() == 2
    ahead = "class Made:\n    def other(self, x: 'Other') -> 'list[int]': return Other"
    assert collected(ahead, "class Other: pass").load().Made().other(1)
    noted = "from typing import get_type_hints\ndef Made(x: 'Kind') -> 'Kind': return get_type_hints(Made)"
    assert set(collected(noted, "class Kind: pass").load().Made(1)) == {"x", "return"}


def test_an_earlier_draft_of_what_calls_itself_is_not_executed():
    submission = collected("class Made(not_there): pass", "def Made(n): return n and Made(n - 1)")
    assert submission.load().Made(3) == 0


def test_a_class_that_extends_its_earlier_self():
    submission = collected("class Made:\n    a = 1", "class Made(Made):\n    b = 2")
    made = submission.load().Made
    assert (made.a, made.b) == (1, 2)


def test_parameters_and_local_names_are_not_needed_from_outside():
    submission = collected(
        "size = missing.size\nrow = missing.row",
        "class Made:\n    def run(self, size): return [row for row in range(size)]",
    )
    assert submission.load().Made().run(2) == [0, 1]


def test_names_used_deep_inside_are_needed():
    inner = "        def inner(): return [K + i for i in range(2)]\n"
    source = f"class Made:\n    def run(self):\n{inner}        return inner()"
    assert collected("K = 5", source).load().Made().run() == [5, 6]


def test_work_is_left_out_and_named_when_missed():
    submission = collected("table = list(map(abs, open('/dev/null')))", "def Made(): return table")
    assert "table" in submission.left_out
    with pytest.raises(NameError) as raised:
        submission.load().Made()
    error = student_error(raised.value, submission.left_out)
    assert "cell 1, line 1" in error.message
    assert error.where == "cell 2, line 1: def Made(): return table"


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("_UNSET = object()\ndef Made(given=_UNSET): return given is _UNSET", True),
        (
            "class _A:\n    def __init__(self): self.n = 3\n_a = _A()\ndef Made(): return _a.n",
            3,
        ),
        ("import weakref\nseen = weakref.WeakKeyDictionary()\ndef Made(): return len(seen)", 0),
        (
            "import torch\n_NONE = torch.zeros(2, dtype=int)\ndef Made(): return len(_NONE)",
            2,
        ),
        ("import struct\nheader = struct.Struct('<qq')\ndef Made(): return header.size", 16),
        ("from operator import itemgetter\nfirst = itemgetter(0)\ndef Made(): return first('ab')", "a"),
        ("import random\ndraw = random.Random(0)\ndef Made(): return 0 <= draw.random() < 1", True),
    ],
)
def test_what_a_class_or_a_plain_function_builds_is_a_definition(source, wanted):
    assert collected(source).load().Made() == wanted


def test_magics_and_cells_for_ranks_are_not_definitions():
    submission = collected(
        "%load_ext labkit\n!rm -rf /\nK = 1", "%%ranks 4\nMade = 7", "def Made(): return K"
    )
    assert submission.load().Made() == 1


def test_lines_keep_their_numbers_under_a_magic():
    submission = collected("%load_ext labkit\n\ndef Made():\n    raise ValueError('x')")
    with pytest.raises(ValueError, match="x") as raised:
        submission.load().Made()
    assert student_error(raised.value).where == "cell 1, line 4: raise ValueError('x')"


def test_a_cell_that_is_not_python_spoils_only_itself():
    submission = collected("def broken(:", "def Made(): return 1")
    assert submission.load().Made() == 1
    assert "SyntaxError" in submission.problems["cell 1"]


def test_nothing_found():
    assert not collected("x = 1").found
    assert collect([Cell("cell 1", "", exercise="06.made")], "06.made", ["Made"]).found


def test_a_definition_that_raises_names_its_cell():
    with pytest.raises(StudentLoadError, match=r"ZeroDivisionError.*cell 1, line 2"):
        load_student(collected("class Made:\n    k = 1 / 0"))


def test_reference_versions_stand_in_for_earlier_ones():
    submission = collected(
        "def helper(): return 'mine'",
        "def Earlier(): return 'wrong'",
        "def Made(): return Earlier(), helper()",
        reference=[Cell("cell 1", "def helper(): return 'theirs'\ndef Earlier(): return helper()")],
        replaced=["Earlier"],
    )
    assert submission.load().Made() == ("theirs", "mine")


@pytest.mark.parametrize(
    "source",
    [
        "x = f()",
        "for i in range(3): y = i",
        "print(1)",
        "with open('f') as f: z = 1",
        "while True: pass",
        "x = [g() for _ in a]",
    ],
)
def test_code_that_works_is_no_definition(source):
    assert parse_cell("cell 1", source).statements == []


@given(st.text(max_size=200))
def test_any_text_is_read_without_raising(source):
    parse_cell("cell 1", source)


def test_deep_nesting_is_a_problem_of_that_cell():
    assert parse_cell("cell 1", "x = " + "(" * 5000 + ")" * 5000).problem
    assert "characters" in parse_cell("cell 1", "#" * 300_000).problem


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        (" \n", "the file is empty"),
        ("PK\x03\x04\udc94\udcff", "it is a zip; take the notebook out"),
        ('{"cells": [{"source": "K = 6', "it is cut off; copy it again"),
        ('{"cells": 3,}', "JSON"),
        ("[]", "list of at most"),
        ('{"cells": 3}', "list of at most"),
        ("[" * 100_000, "JSON"),
        ("\udcff", "JSON"),
    ],
)
def test_what_is_not_a_notebook_says_so(tmp_path, text, says):
    path = tmp_path / "06_x.ipynb"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadNotebook, match=says):
        read_cells(path)


def test_cells_of_strange_shape_are_skipped():
    cells = [
        3,
        {"cell_type": "markdown"},
        {"cell_type": "code", "source": ["a\n", 5, "b"], "metadata": 7},
        {"cell_type": "code"},
    ]
    assert [c.source for c in cells_of({"cells": cells})] == ["a\nb", ""]


def test_the_exercise_is_read_from_the_metadata():
    cell = {
        "cell_type": "code",
        "metadata": {"nbgrader": {"grade_id": grade_id("06.made"), "solution": True}},
    }
    assert cells_of({"cells": [cell]})[0].exercise == "06.made"


def test_an_import_repeated_below_does_not_take_it_away_above():
    submission = collected("import math", "class Made:\n    pi = math.pi", "import math\nK = 1")
    assert submission.load().Made.pi > 3


def test_what_runs_at_once_finds_what_stands_above_and_what_runs_later_what_stands_last():
    helper = ["def helper(): return K", "K = 1"]
    submission = collected(
        *helper, "class Made:\n    at_once = helper()\n    def later(self): return helper()", "K = 2"
    )
    made = submission.load().Made
    assert (made.at_once, made().later()) == (1, 2)


NAMES = st.sampled_from(["a", "b", "c", "Made"])
NUMBERS = st.integers(0, 9)
DEFINITIONS = st.one_of(
    st.builds("{} = {}".format, NAMES, NUMBERS),
    st.builds("{} = {}".format, NAMES, NAMES),
    st.builds("{} = [{}, {}]".format, NAMES, NAMES, NAMES),
    st.builds("def {}(): return {}".format, NAMES, NAMES),
    st.builds("def {}(x={}): return x".format, NAMES, NAMES),
    st.builds("class {}:\n    v = {}".format, NAMES, NAMES),
    st.builds("class {}:\n    v = [{} for _ in range(2)]".format, NAMES, NAMES),
    st.builds("class {}:\n    v = {}() if callable({}) else 0".format, NAMES, NAMES, NAMES),
    st.builds("import math as {}".format, NAMES),
)


def told(value, depth=4):
    """A value as plain data, functions called and classes looked into."""
    if depth == 0 or isinstance(value, int):
        return value if isinstance(value, int) else "..."
    if isinstance(value, list):
        return [told(each, depth - 1) for each in value]
    if isinstance(value, type):
        return ["class", value.__name__, told(value.v, depth - 1)]
    if isinstance(value, ModuleType):
        return value.__name__
    return ["called", told(value(), depth - 1)] if callable(value) else ["of", told(type(value), depth - 1)]


@settings(deadline=None)
@given(st.lists(DEFINITIONS, min_size=1, max_size=8))
@example(["a = 0", "class a:\n    v = a", "class a:\n    v = a() if callable(a) else 0", "Made = a"])
def test_collecting_gives_what_running_the_notebook_gives(sources):
    """Property: where the whole notebook runs, what is collected of it gives the same."""
    whole = {}
    try:
        for source in sources:
            exec(source, whole)
        expected = told(whole["Made"])
    except (NameError, KeyError, RecursionError, TypeError):
        return
    assert told(vars(collected(*sources).load())["Made"]) == expected


@pytest.mark.parametrize(
    "source",
    [
        "def scratch(x, x): return x",
        "return 3",
        "nonlocal x",
        "def f():\n    x: int = 1\n    global x",
        "x = " + "(" * 5000,
        "x = " + "+".join(["1"] * 50_000),
        "if a: pass\n" + "elif a: pass\n" * 5000,
        "x = '\ud800'",
        "x = '\x00'",
    ],
    ids=range(9),
)
def test_a_cell_that_cannot_be_read_is_its_own_problem_alone(source):
    submission = collected(source, "def Made(): return 1")
    assert submission.load().Made() == 1
    assert list(submission.problems) == ["cell 1"]
    assert "cell 1" in submission.problems["cell 1"]


@pytest.mark.parametrize("odd", ["\x0c", "\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_lines_are_those_that_python_counts(odd):
    above = f"text = 'a{odd}b'\nK = 1\n"
    submission = collected(f"{above}def Made():\n    assert text == {f'a{odd}b'!r}\n    raise ValueError(K)")
    with pytest.raises(ValueError, match="1") as raised:
        submission.load().Made()
    assert student_error(raised.value).where == "cell 1, line 5: raise ValueError(K)"


def test_what_only_looks_like_a_magic_is_python():
    assert collected(
        'K = (7\n% 4)\nTEXT = """\n%x\n!y\nz?\n"""\ndef Made(): return K, TEXT'
    ).load().Made() == (
        3,
        "\n%x\n!y\nz?\n",
    )


def test_magics_anywhere_in_a_cell_do_nothing():
    source = "files = !ls\nif 1:\n    %time x = 1\nMade?\nt = %timeit -o 1\ndef Made(): return 4"
    assert collected(source).load().Made() == 4


def test_annotations_are_not_evaluated_where_the_cell_says_so():
    source = "from __future__ import annotations\ndef Made(x: NotThere = 1) -> NotThere: return x"
    assert collected(source).load().Made() == 1


EARLIER = [
    Cell(
        "cell 1",
        "class Earlier:\n    def __init__(self): self.x = 'theirs'\n    def get(self): return self.x",
    )
]


def test_a_method_added_to_an_earlier_class_is_there_with_the_stand_in_too():
    more = "    @property\n    def more(self): return helper(self.x)"
    own = f"class Earlier:\n    def get(self): return 'mine'\n{more}"
    uses = "def Made():\n    e = Earlier()\n    return e.get(), e.more"
    helper = "def helper(x): return [x]"
    submission = collected(own, uses, helper, reference=EARLIER, replaced=["Earlier"])
    assert submission.load().Made() == ("theirs", ["theirs"])


def test_a_method_that_cannot_be_added_harms_nothing():
    own = "class Earlier:\n    @not_there\n    def more(self): return 1"
    submission = collected(own, "def Made(): return Earlier().get()", reference=EARLIER, replaced=["Earlier"])
    assert submission.load().Made() == "theirs"


def test_what_thousands_of_definitions_need_is_told_in_seconds() -> None:
    """Each of 1,500 is decorated with the first of a chain of 1,500, which is called at 1,500 moments."""
    chain = [f"def f{n}(g): return f{n + 1}(g)" for n in range(1499)]
    decorated = [f"@f0\ndef x{n}(): pass" for n in range(1500)]
    last = "def route():\n" + "\n".join(f"    x{n}" for n in range(1500))
    cells = [
        Cell("cell 1", "\n".join([*chain, "def f1499(g): return g"])),
        Cell("cell 2", "\n".join(decorated)),
    ]
    began = time.process_time()
    parsed = [*(parse_cell(cell.label, cell.source) for cell in cells), parse_cell("cell 3", last)]
    read = time.process_time()
    kept = needed_for(["route"], [statement for cell in parsed for statement in cell.statements])
    assert len(kept) == 3001
    assert time.process_time() - read < 1 + (read - began)


def test_a_function_called_at_many_moments_finds_what_each_of_them_has() -> None:
    """A function that is needed at once finds the version of what it calls that stood there."""
    versions = [f"@made\ndef x{n}(): pass\ndef helper(): return {n}" for n in range(5)]
    source = "\n".join(["def made(f): return helper() and f", "def helper(): return -1", *versions])
    statements = parse_cell("cell 1", f"{source}\ndef route(): return x1(), x3()").statements
    kept = needed_for(["route"], statements)
    assert [s.first_line for s in kept if s.defines == ("helper",)] == [5, 11, 17]
