"""Values that a session's ranks have of the notebook: what goes there, what keeps sharing, what is kept."""

from __future__ import annotations

import pytest

import labkit
from labkit.launch.session import Session

pytestmark = pytest.mark.timeout(60)


class Notebook:
    """A namespace with cells of its own, and cells on ranks."""

    def __init__(self, session: Session) -> None:
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.session = session
        self.notes: list[str] = []

    def cell(self, source: str) -> None:
        exec(compile(source, "In[1]", "exec"), self.names)

    def ranks(self, source: str, **options: object) -> dict[int, str]:
        """The values that a cell has on the ranks."""
        result = self.session.run(source, names=self.names, **options)  # type: ignore[arg-type]
        self.notes = list(result.notes)
        return result.values

    def both(self, source: str, **options: object) -> str:
        """The value that it has on both ranks."""
        values = self.ranks(source, **options)
        assert len(values) == 2
        assert values[0] == values[1]
        return values[0]


@pytest.fixture
def notebook(session: Session) -> Notebook:
    return Notebook(session)


MODEL = """
import torch
from torch import nn
torch.manual_seed(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
    def forward(self, x): return self.b(self.a(x)).sum()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
"""
TRAIN = "optimizer.zero_grad()\nmodel(torch.ones(3)).backward()\noptimizer.step()\n"


def test_an_optimizer_of_a_later_cell_trains_the_model(notebook: Notebook) -> None:
    notebook.cell(MODEL)
    before = notebook.both("float(model.a.weight.sum())")
    notebook.ranks(TRAIN)
    assert notebook.both("float(model.a.weight.sum())") != before
    assert (
        notebook.both("model.a.weight is model.b.weight is optimizer.param_groups[0]['params'][0]") == "True"
    )


def test_aliases_views_and_ties_are_the_same_across_cells(notebook: Notebook) -> None:
    notebook.cell(
        "import torch\nx = torch.zeros(4)\nv = x[1:3]\nxs = [1]\nclass Box: pass\nbox = Box()\nbox.xs = xs"
    )
    notebook.ranks("x, xs")
    notebook.cell("also, ys = x, xs")
    assert (
        notebook.both("v.fill_(2)\nxs.append(2)\nalso.tolist(), ys, box.xs is xs")
        == "([0.0, 2.0, 2.0, 0.0], [1, 2], True)"
    )


def test_what_the_ranks_trained_outlives_a_change_of_mode_in_the_notebook(notebook: Notebook) -> None:
    notebook.cell(MODEL)
    notebook.ranks(TRAIN)
    trained = notebook.both("float(model.a.weight.sum())")
    notebook.cell("model.eval()")
    assert notebook.both("float(model.a.weight.sum())") == trained
    assert notebook.both("model.training, model.a.training") == "(False, False)"
    assert notebook.notes == []


def test_weights_changed_on_both_sides_are_told_of_and_can_be_pushed(notebook: Notebook) -> None:
    notebook.cell(MODEL)
    notebook.ranks(TRAIN)
    trained = notebook.both("float(model.a.weight.sum())")
    notebook.cell("with torch.no_grad(): model.a.weight.zero_()")
    assert notebook.both("float(model.a.weight.sum())") == trained
    assert "model: the ranks have values of their own" in notebook.notes[0]
    assert "`%%ranks --push model`" in notebook.notes[0]
    assert notebook.both("float(model.a.weight.sum())") == trained
    assert notebook.notes == []  # said once
    assert notebook.both("float(model.a.weight.sum())", push=["model"]) == "0.0"
    assert notebook.both("optimizer.param_groups[0]['params'][0] is model.a.weight") == "True"


def test_a_model_made_anew_does_not_replace_a_trained_one_nor_does_its_optimizer(notebook: Notebook) -> None:
    notebook.cell(MODEL)
    notebook.ranks(TRAIN)
    notebook.cell(MODEL)
    assert notebook.both("optimizer.param_groups[0]['params'][0] is model.a.weight") == "True"
    assert notebook.notes[0].startswith("model, optimizer: the ranks have values of their own")
    notebook.ranks("1", push=["model", "optimizer"])
    assert notebook.both("optimizer.param_groups[0]['params'][0] is model.a.weight") == "True"
    assert notebook.both("len(optimizer.state)") == "0"


def test_a_model_made_anew_replaces_one_that_nobody_has_changed(notebook: Notebook) -> None:
    notebook.cell(MODEL)
    notebook.ranks("model, optimizer")
    notebook.cell(MODEL + "model.a.bias.data.fill_(7)")
    assert notebook.both("optimizer.param_groups[0]['params'][1] is model.a.bias") == "True"  # both came
    assert notebook.both("model.a.bias.tolist()") == "[7.0, 7.0, 7.0]"
    assert notebook.notes == []


def test_what_changed_in_the_notebook_changes_in_place(notebook: Notebook) -> None:
    notebook.cell(
        "class Config:\n  lr = 1\nclass Trainer:\n  def __init__(self, config): self.config = config\n"
        "config = Config()\ntrainer = Trainer(config)\nsizes = {'a': 1}\nseen = {1}"
    )
    notebook.ranks("trainer.steps = 5\ntrainer\nmine = [sizes, seen, config]")
    notebook.cell("config.lr = 2\nsizes['b'] = 2\nseen.add(3)")
    assert (
        notebook.both("config.lr, trainer.config.lr, trainer.steps, sizes") == "(2, 2, 5, {'a': 1, 'b': 2})"
    )
    assert (
        notebook.both("seen, mine[0] is sizes, mine[1] is seen, mine[2] is config")
        == "({1, 3}, True, True, True)"
    )
    assert notebook.notes == []


def test_objects_in_a_circle(notebook: Notebook) -> None:
    notebook.cell("class Node: pass\na, b = Node(), Node()\na.next, b.next = b, a\nxs = [a]\nxs.append(xs)")
    notebook.ranks("a")
    assert notebook.both("a.next is b, b.next is a, xs[0] is a, xs[1] is xs") == "(True, True, True, True)"
    notebook.cell("b.value = 3")
    assert notebook.both("a.next.value, a.next is b") == "(3, True)"


def test_a_name_that_both_have_set_stays_as_the_ranks_set_it(notebook: Notebook) -> None:
    notebook.cell("lr = 0.1")
    assert notebook.both("lr") == "0.1"
    notebook.ranks("lr = 0.5")
    assert notebook.both("lr") == "0.5"
    assert notebook.notes == []
    notebook.cell("lr = 0.01")
    assert notebook.both("lr") == "0.5"
    assert "lr: the ranks have values of their own" in notebook.notes[0]
    assert notebook.both("lr", push=["lr"]) == "0.01"


@pytest.mark.parametrize(
    ("before", "cell", "value"),
    [
        ("w = 1", "w += 1\nw", "2"),
        ("xs = [1]", "xs = xs + [3]\nxs", "[1, 3]"),
        ("i = 5", "[i for i in range(2)], i", "([0, 1], 5)"),
        ("f = abs", "f = (lambda g: lambda x: g(x) + 1)(f)\nf(-2)", "3"),
        ("z = 4", "class A:\n  z = z\nA.z", "4"),
        ("c = 1", "def up():\n  global c\n  c += 1\nup()\nc", "2"),
        ("_own = 3\nnumber_of_ = 4", "_own + number_of_", "7"),
        ("x = 3", "del x\n'x' in globals()", "False"),
    ],
)
def test_names_by_pythons_rules_of_scope(notebook: Notebook, before: str, cell: str, value: str) -> None:
    notebook.cell(before)
    assert notebook.both(cell) == value


def test_what_the_ranks_deleted_comes_again(notebook: Notebook) -> None:
    notebook.cell("import torch\nx = torch.ones(2)\ny = 3")
    notebook.ranks("del x, y")
    assert notebook.both("x.tolist(), y") == "([1.0, 1.0], 3)"


def test_what_went_to_one_rank_goes_to_the_other_when_it_needs_it(notebook: Notebook) -> None:
    notebook.cell("import torch\nx, y = torch.zeros(2), 5")
    notebook.ranks("x += 1\ny += 1", ranks=[0])
    assert notebook.ranks("x.tolist(), y") == {0: "([1.0, 1.0], 6)", 1: "([0.0, 0.0], 5)"}
    assert notebook.notes == []
    notebook.cell("y = 7")
    assert notebook.ranks("y") == {0: "6", 1: "5"}
    assert notebook.notes


def test_a_tensor_that_has_another_dtype_now(notebook: Notebook) -> None:
    notebook.cell("import torch\nw = torch.arange(4.)\nmodel = torch.nn.Linear(2, 2)")
    notebook.both("w, model.weight")
    notebook.cell("w.data = w.data.double()\nmodel.requires_grad_(False).to(torch.float16).weight.fill_(1.5)")
    assert notebook.both("w, model.weight.tolist(), model.weight.dtype") == (
        "(tensor([0., 1., 2., 3.], dtype=torch.float64), [[1.5, 1.5], [1.5, 1.5]], torch.float16)"
    )


KINDS = """
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
class Config(dict): pass
class Stack(list): pass
class Bag(set): pass
@dataclass(slots=True)
class Point:
    x: int = 0
kinds = [OrderedDict, lambda: defaultdict(int), Counter, Config, Stack, Bag, lambda: bytearray(3), Point]
for number, kind in enumerate([*kinds, SimpleNamespace]):
    globals()[f"one{number}"] = globals()[f"other{number}"] = kind()
"""
NUMBERS = range(9)


def test_two_names_of_one_object_of_any_kind(notebook: Notebook) -> None:
    notebook.cell(KINDS)
    notebook.ranks("; ".join(f"one{number}" for number in NUMBERS))
    assert notebook.both("[" + ", ".join(f"other{n} is one{n}" for n in NUMBERS) + "]") == str([True] * 9)
    notebook.cell("one0['a'] = one1['a'] = one2['a'] = one3['a'] = one8.a = 1\none4.append(1)\none7.x = 1")
    notebook.cell("one5.add(1)\none6[0] = 1")
    assert notebook.both("[" + ", ".join(f"other{n} is one{n}" for n in NUMBERS) + "]") == str([True] * 9)
    seen = "[*other0, *other1, *other2, *other3, *other4, *other5, other6[0], other7.x, other8.a]"
    assert notebook.both(seen) == "['a', 'a', 'a', 'a', 1, 1, 1, 1, 1]"
    assert notebook.notes == []


def test_functions_with_a_cache_travel(notebook: Notebook) -> None:
    cached = "@functools.lru_cache(maxsize=7)\ndef count(n): return count(n - 1) + step if n else 0\n"
    notebook.cell(f"import functools\nstep = 2\n{cached}twice = functools.partial(count, 2)")
    assert notebook.both("count(3), twice(), count.cache_parameters()['maxsize']") == "(6, 4, 7)"


def test_what_a_tensor_was_computed_from_stays_behind_and_is_told(notebook: Notebook) -> None:
    notebook.cell("import torch\nw = torch.ones(2, requires_grad=True)\ny = 2 * w\nz = y.detach()")
    notebook.ranks("z")
    assert notebook.notes == []
    notebook.ranks("y.sum().backward()")
    assert notebook.notes[0].startswith("y: what it was computed from stays in the notebook")
    notebook.ranks("y")
    assert notebook.notes == []


def test_a_name_that_only_a_text_has_is_told_of(notebook: Notebook) -> None:
    notebook.cell("hidden = 3")
    with pytest.raises(labkit.LaunchError, match="the notebook has `hidden`, but a name that only a text"):
        notebook.ranks("eval('hidden')")
    with pytest.raises(labkit.LaunchError) as found:
        notebook.ranks("eval('nowhere')")
    assert "the notebook has" not in str(found.value)


def test_a_value_that_answers_to_every_name_is_shown_as_text(notebook: Notebook) -> None:
    notebook.cell("from unittest.mock import Mock\nmock = Mock(name='any')")
    assert "<Mock name='any.thing" in notebook.ranks("mock.thing")[0]
