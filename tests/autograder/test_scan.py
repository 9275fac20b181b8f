"""The scan tells a person of what no exercise needs, with cell and line, and of nothing else."""

from __future__ import annotations

import time

import pytest
import torch
from conftest import F_ID

from autograder.grade.names import TOO_LONG
from autograder.grade.reference import graded_submission, solved_cells, stub_cells
from autograder.grade.scan import MOST_FLAGS, scan
from autograder.grade.watched_names import SENDS_OBJECTS, WRITES_FILES
from labkit.checks import registry
from labkit.checks.source.submission import Cell, collect

WITH_FILES = [
    "import tempfile, torch\ndef f(x):\n    file = tempfile.TemporaryFile()\n    torch.save(x, file)",
    "import tempfile\ndef f(x): return tempfile.mkdtemp()",
    "from tempfile import TemporaryDirectory as T\ndef f(x): return T()",
    "from pathlib import Path\ndef f(x): Path('a').write_bytes(x)",
    "import numpy as np\ndef f(x): np.save('a', x)",
    "def f(x): x.numpy().tofile('a')",
    "import io, torch\ndef f(x, at=io.BytesIO()): torch.save(x, at)",
    "from safetensors.torch import save_file\ndef f(x): save_file({'x': x}, 'a')",
    "from pathlib import Path\ndef f(x): Path('a').open('wb').write(x)",
    "from pathlib import Path\ndef f(x, how): return Path('a').open(how)",
    "def f(x):\n    o = open\n    return o",
    "import labkit\ndef f(x): labkit.whole_file.write_whole(x, x)",
    "import logging\ndef f(x): logging.basicConfig(filename='a')",
    "import torch\ndef f(x): torch.profiler.profile().export_chrome_trace('a')",
]
HONEST = [
    "def f(x): return x.detach().to('cpu').clone(), dict(cpu=x)",
    "import torch\nclass A:\n    def f(self):\n        self.cpu = torch.random.get_rng_state()",
    "class A:\n    def f(self):\n        self.cpu = True\n        self.contiguous = []",
    "from collections import namedtuple\nimport enum, dataclasses\nclass A(enum.Enum): x = enum.auto()",
    "import enum\nclass A(enum.Enum):\n    @staticmethod\n    def _generate_next_value_(*x): return x[0]",
    "import random, time, math\ndef f(x): return random.random() + time.perf_counter() + math.pi",
    "import torch\ndef f(x): return torch.nn.functional.gelu(x), torch.optim.AdamW(x), torch.cuda.Stream()",
    "import numpy as np\ndef f(x): return np.random.default_rng(0), np.linalg.norm(x), np.arange(x)",
    "import dataclasses\nfrom dataclasses import dataclass, field\ndef f(x): return dataclasses.replace(x)",
    "import functools, typing\n@functools.lru_cache\ndef f(x: typing.Any): return functools.partial(x)",
    "import pathlib, json\ndef f(x): return pathlib.Path(x) / json.dumps(x)",
    "import random, bisect, statistics\nfrom pathlib import Path",
    "from torch.utils._pytree import tree_map\nfrom torch._utils import _flatten_dense_tensors",
    "import torch\ndef f(x): torch._foreach_add_(x, 1)",
    "import torch\ndef f(self): self.pass_ = torch._C._current_graph_task_id()",
    "import torch\ndef f(x): torch.autograd.Variable._execution_engine.queue_callback(x)",
    "import torch\ndef f(m): return isinstance(m, torch.nn.modules.batchnorm._BatchNorm)",
    "def f(x, names): return [getattr(x, name) for name in names]",
    "def f(g, x): return getattr(g, '__self__', g), getattr(x.g, '__closure__', None) or ()",
    "def f(g): return getattr(g, '__wrapped__', g) if hasattr(g, '__self__') else None",
    "import json\ndef f(path): return json.loads(path.read_bytes().decode())",
    "from labkit import devices\nfrom labkit.theory.models import gpt\nimport labkit.show.table",
    "import torch\ndef f(kept): return torch.zeros(2, dtype=getattr(torch, kept['dtype']))",
    "def f(model, name): return getattr(model, name) + getattr(model, f'{name}_norm')",
    "import torch\ndef f(x): return torch.trace(x) + getattr(x, 'T') + getattr(torch, 'float32').itemsize",
    "import torch.distributed as dist\ndef f(x): return (getattr(dist, 'new', None) or dist.all_reduce)(x)",
    "import labkit\ndef f(): return labkit.launch(print, ranks=2)",
    "import gc\ndef f():\n    gc.collect()\n    if gc.isenabled(): gc.disable()\n    gc.enable()",
    "import sys\ndef f(n): sys.setrecursionlimit(max(n, sys.getrecursionlimit()))",
    "import sys\ndef f(): return min(sys.maxsize.bit_length(), sys.float_info.max)",
    "def f():\n    import gc, sys\n    return gc.collect() + sys.maxsize",
    "def f(gc, sys): return gc + sys",
    "import re\ndef f(input, vars): return re.compile(input).search(vars)",
    "class A:\n    def f(self): self.calls = self.__dict__",
    "import torch.nn.functional as F\ndef f(x):\n    B, T, F = x.shape\n    return x.view(B * T, F)",
    "import torch.nn.functional as F\ndef f(x, act=F.gelu): return act(x) + (lambda F: F)(2)",
    "import torch\ndef f(x): return hasattr(torch, 'compile') and torch.load(x, weights_only=True)",
    "def f(x): raise ValueError('the entries of ' + str(x) + f' are modules {x}' 'that open')",
    "import torch\nfrom functools import partial\ndef f(): return partial(torch.load, weights_only=True)",
    "import numpy as np\ndef f(x, y, load): return np.load(x, mmap_mode='r') + load(x, y, *y)",
    "from torch import nn\ndef f(m): return isinstance(m, nn.modules.batchnorm._BatchNorm)",
    "import torch.nn as nn\ndef f(): return nn.modules.conv.Conv1d, nn.modules.loss.L1Loss",
    "import torch\nnn = torch.nn\nF = nn.functional\ndef f(x): return nn.Linear(2, 2)(F.gelu(x))",
    "import torch\ndef f(): return hasattr(torch.distributed, 'all_to_all'), getattr(torch.cuda, 'x', 0)",
    "import torch\ndef f(x):\n    dist = torch.distributed\n    return dist.all_reduce(x)",
    "def f(x): return f'{x}_norm' + '_'.join(['a', 'b']) + '__'.join('xy')",
    "import torch\ndef f(x): return torch.from_numpy(x.numpy() * 2), x.tolist()",
    "def f(x: 'list[int]') -> 'dict[str, int]': return type(x)(x)",
    "from math import *\nfrom typing import *\ndef f(x: Any) -> Any: return sqrt(x)",
    "from functools import *\nfrom operator import *\ndef f(x): return reduce(add, x, 0), partial(f, x)",
    "def f(x): return 'a rendezvous of all ranks'",
    "import torch\nfrom torch import nn\nclass A(nn.Module):\n    def f(self): torch.random.manual_seed(0)",
    "import functools\ndef f(g):\n    @functools.wraps(g)\n    def A(*x): return g(*x)\n    return A",
    "import contextlib, io\ndef f(x):\n    with contextlib.redirect_stdout(io.StringIO()) as y: return x, y",
    "import contextlib as c\ndef f(s, x): s.enter_context(c.redirect_stderr(x))",
    "import dataclasses\nA = dataclasses.make_dataclass('A', ['x', ('y', int), ('z', 'int', 3)])",
    "from dataclasses import fields\ndef f(self, x):\n    self.name = [y.name for y in fields(x)]",
    "from dataclasses import fields\ndef f(x, y):\n    for z in fields(y): setattr(x, z.name, z.default)",
    "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    x: int = field(default=0)\n"
    "    def g(self, name): self.name = name",
    "from dataclasses import dataclass\n@dataclass\nclass A: x: int\ndef f(x):\n    match x:\n"
    "        case A(y) | int(y): return y",
    "from functools import singledispatch\nimport torch\nclass A: pass\n@singledispatch\ndef f(x): pass\n"
    "@f.register\ndef _(x: int | A, y: 'list[int]' = ()) -> torch.Tensor: pass\n"
    "@f.register(torch.Tensor)\n@f.register(A)\ndef _(x): pass\nf.register(float, print)",
    "import torch.nn as nn\nclass A(nn.Module):\n    def __getattr__(self, x):\n"
    "        try: return super().__getattr__(x)\n        except AttributeError: return getattr(self.a, x)",
    "import copy\ndef f(x): return copy.copy(x), copy.deepcopy(x), f.__module__",
    "import copy\nclass A:\n    def __getstate__(self): return {}\ndef f(x): return copy.deepcopy(x)",
    "class A:\n    def __new__(cls, *x): return super().__new__(cls)",
    "import weakref\ndef f(x): return weakref.ref(x)(), weakref.WeakKeyDictionary(), weakref.proxy(x)",
    "import weakref\ndef f(x: weakref.ref, y: list[weakref.ref] | None = None) -> dict[int, weakref.ref]:\n"
    "    x.a: list['int', weakref.ref] = []\n    for y in x: z: A[weakref.ref] | None = None",
    "from torch.utils._pytree import PyTree, tree_flatten, tree_map_only, tree_unflatten",
    "import torch.utils._pytree as pytree\ndef f(g, x): return pytree.tree_map(g, x)",
    "import torch\n@torch.compile\ndef f(x): return torch.compile(f, backend='eager', fullgraph=True)(x)",
    "import torch\ndef f(x): return torch.load(x, 'cpu', weights_only=True), torch.load(x, mmap=True)",
    "from torch import Tensor\ndef f(x): return [*map(Tensor.tolist, x)], Tensor.item(x), map(Tensor.add, x)",
    "import torch.distributed as d\ndef f(w: d.Work, x) -> d.ProcessGroup: return w.wait, x.tolist, w.wait()",
]
SENT_BY_ALL = [
    "def f(x, g): dist.all_gather_object(x, x, group=g)",
    "def f(x, g):\n    for y in x:\n        if y: break\n    dist.broadcast_object_list(x, group=g)",
    "def f(x, g):\n    if not x: raise ValueError\n    dist.all_gather_object(x, x)\n    if x: return 1",
]
SENT_BY_SOME = [
    "def f(x):\n    if x: dist.all_gather_object(x, x)",
    "def f(x):\n    if x: return\n    dist.all_gather_object(x, x)",
    "def f(x):\n    for y in x:\n        if y: continue\n        dist.broadcast_object_list(x, y)",
    "def f(x):\n    x or dist.broadcast_object_list(x)",
    "def f(x): return {True: lambda: dist.gather_object(x)}[x]()",
    "def f(x): dist.recv_object_list(x)",
]


@pytest.mark.parametrize("source", HONEST)
def test_what_is_not_told(source: str) -> None:
    """A flag that holds points back must have a reason that a person sees at once."""
    assert scan(collect([Cell("cell 4", source)], F_ID, ["f", "A"])) == []


@pytest.mark.parametrize("source", WITH_FILES)
def test_what_keeps_data_in_files_is_told_where_an_exercise_has_none(source: str) -> None:
    submission = collect([Cell("cell 4", source)], F_ID, ["f"])
    assert scan(submission, writes_files=True) == []
    flags = scan(submission)
    assert flags
    assert all("in a file" in flag.why and flag.holds for flag in flags)


@pytest.mark.parametrize("source", SENT_BY_ALL)
def test_objects_are_sent_where_an_exercise_is_solved_with_them(source: str) -> None:
    submission = collect([Cell("cell 4", f"import torch.distributed as dist\n{source}")], F_ID, ["f"])
    assert scan(submission, sends_objects=True) == []
    assert all(flag.holds_all for flag in scan(submission))


@pytest.mark.parametrize("source", SENT_BY_SOME)
def test_objects_that_some_ranks_may_receive_without_the_others_sending_them(source: str) -> None:
    """Where others send bytes of their own, these are unpickled."""
    submission = collect([Cell("cell 4", f"import torch.distributed as dist\n{source}")], F_ID, ["f"])
    flags = scan(submission, sends_objects=True)
    assert any("another rank sends" in flag.why and flag.holds_all for flag in flags)


def test_who_sends_objects_and_who_writes_files_are_exercises() -> None:
    every = {e.id for lesson in registry.lessons() for e in registry.exercises(lesson)}
    assert every >= SENDS_OBJECTS | WRITES_FILES


@pytest.mark.parametrize(
    ("module", "name"),
    [("operator", "attrgetter"), ("typing", "get_type_hints"), ("functools", "update_wrapper")],
)
def test_what_an_import_of_everything_brings_is_told_where_it_is_used(module: str, name: str) -> None:
    used = f"from {module} import *\ndef f(x): return {name}(x)"
    (flag,) = scan(collect([Cell("cell 4", used)], F_ID, ["f"]))
    assert name in flag.why
    assert f"with all of {module}" in flag.why
    assert flag.holds


@pytest.mark.parametrize(
    "source",
    [
        "import os\ndef f(x): return os.path.join(x, 'a'), os.listdir(x)",
        "from os.path import join\ndef f(x): return join(x, 'a')",
        "import os.path as p\ndef f(x): return p.exists(x)",
    ],
)
def test_files_by_os_are_told_and_hold_no_points(source: str) -> None:
    """As the text of 08.sharded-checkpoint says."""
    flags = scan(collect([Cell("cell 4", source)], F_ID, ["f"]))
    assert flags
    assert not any(flag.holds for flag in flags)


def test_a_models_own_modules_are_nothing_to_tell() -> None:
    source = "def f(model): return [m for m in model.modules() if not list(m.children())]"
    assert scan(collect([Cell("cell 4", source)], F_ID, ["f"])) == []


def test_where_it_is() -> None:
    flags = scan(collect([Cell("cell 7", "x = 1\n\n\nimport ctypes")], F_ID, ["ctypes"]))
    assert (flags[0].cell, flags[0].line_number, flags[0].line) == ("cell 7", 4, "import ctypes")


@pytest.mark.days
@pytest.mark.parametrize("lesson", registry.lessons())
def test_references_and_stubs_are_clean(lesson: str) -> None:
    """A flag on the author's own solution would teach a person to ignore flags."""
    for exercise in registry.exercises(lesson):
        for cells in (solved_cells(lesson), stub_cells(lesson)):
            for submission in graded_submission(cells, exercise):
                assert scan(submission, exercise.forbids, writes_files=exercise.id in WRITES_FILES) == []


@pytest.mark.parametrize(
    ("forbidden", "beneath"),
    [
        ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint._checkpoint_without_reentrant"),
        ("torch.nn.functional.scaled_dot_product_attention", "torch.ops.aten._scaled_dot_product_flash"),
    ],
)
def test_what_a_forbidden_function_is_made_of_is_forbidden_too(forbidden: str, beneath: str) -> None:
    submission = collect([Cell("cell 1", f"import torch\ndef f(x): return {beneath}(x)")], F_ID, ["f"])
    assert any(f"beneath {forbidden}" in flag.why for flag in scan(submission, (forbidden,)))


@pytest.mark.days
def test_a_source_of_thousands_of_names_is_read_in_seconds() -> None:
    names = "\n".join(f"    import a{n} as x" for n in range(2000))
    used = "\n".join(f"    x.b{n}" for n in range(4000))
    submission = collect([Cell("cell 1", f"class A:\n{names}\n{used}")], F_ID, ["A"])
    began = time.process_time()
    assert any("x stand for more than 20 things" in flag.why for flag in scan(submission))
    assert time.process_time() - began < 20


def test_a_long_chain_of_names_is_followed_in_seconds_and_told_in_a_hundred_lines() -> None:
    chain = "\n".join(["import torch", "a0 = torch.nn", *(f"a{n + 1} = a{n}" for n in range(2000))])
    source = f"{chain}\ndef f(): return a2000.functional.importlib, f.__globals__"
    began = time.process_time()
    flags = scan(collect([Cell("cell 1", source)], F_ID, ["f"]))
    assert time.process_time() - began < 20
    assert len(flags) == MOST_FLAGS
    assert any("importlib" in flag.why for flag in flags)
    assert flags[-1].why == "there are 1906 more places to look at"
    assert flags[-1].holds_all


@pytest.mark.parametrize("first", ["torch", "labkit", "anything"])
def test_a_name_of_thousands_of_parts_is_told_at_once(first: str) -> None:
    name = ".".join([first, *["nn"] * 3000])
    lines = (
        f"import torch, labkit\ndef f():\n    if False:\n        from {name} import x\n        import {name}"
    )
    attributes = ".".join([first, *["nn"] * 900])
    began = time.process_time()
    flags = scan(collect([Cell("cell 1", f"{lines}\n    return {attributes}")], F_ID, ["f"]))
    assert time.process_time() - began < 2
    assert [flag.line_number for flag in flags] == [4, 5, 6]
    assert all("not followed" in flag.why and flag.holds_all for flag in flags)


def test_a_name_that_no_file_can_have_is_no_error() -> None:
    source = f"def f():\n    import labkit.{'a' * 5000}\n    import {'b' * 5000}"
    assert {flag.why for flag in scan(collect([Cell("cell 1", source)], F_ID, ["f"]))} == {TOO_LONG}
    source = f"import labkit, torch\ndef f(): getattr(labkit, {'a' * 5000!r}), getattr(torch, {'b' * 5000!r})"
    assert scan(collect([Cell("cell 1", source)], F_ID, ["f"])) == []


@pytest.mark.days
def test_long_names_are_not_told_again_and_again() -> None:
    """A name of half a cell that another cell uses ten thousand times would be gigabytes of flags."""
    long = Cell("cell 1", f"import torch.{'a' * 100_000} as t")
    uses = Cell("cell 2", "def f():\n" + "\n".join(f"    t._x{n}" for n in range(10_000)))
    flags = scan(collect([long, uses], F_ID, ["f"]))
    assert any(flag.why == TOO_LONG and flag.holds_all for flag in flags)
    assert sum(len(str(flag)) for flag in flags) < 10_000


def test_names_that_stand_for_very_many_things_are_not_all_looked_up() -> None:
    given = "\n".join(f"    import torch.a{n} as t" for n in range(19))
    used = "\n".join(f"    t.a{n}{'.nn' * 25}" for n in range(100))
    began = time.process_time()
    flags = scan(collect([Cell("cell 1", f"class A:\n{given}\n{used}")], F_ID, ["A"]))
    assert time.process_time() - began < 10
    assert any("which are not followed" in flag.why and flag.holds_all for flag in flags)


def test_what_is_left_out_of_many_flags_still_holds() -> None:
    source = "\n".join(["def f(x):", *(f"    open({n})" for n in range(300)), "    exec(x)"])
    flags = scan(collect([Cell("cell 1", source)], F_ID, ["f"]))
    assert len(flags) == MOST_FLAGS
    assert any(flag.why == "calls exec" and flag.holds_all for flag in flags)


def test_a_name_for_very_many_modules_is_told() -> None:
    given = "\n".join(f"    m = torch.{name}" for name in sorted(vars(torch)) if is_public_module(name))
    flags = scan(collect([Cell("cell 1", f"import torch\ndef f():\n{given}")], F_ID, ["f"]))
    assert any("m stand for more than 20 things" in flag.why and flag.holds_all for flag in flags)


def is_public_module(name: str) -> bool:
    return name.isalpha() and isinstance(getattr(torch, name), type(torch))


@pytest.mark.parametrize(
    ("reached", "all_of_them"),
    [
        ("from labkit.checks import judge", True),
        ("f.__closure__", False),
        ("open('x')", False),
        ("import werkzeug", True),
        ("import torch.ao", True),
        ("import torch\n    torch.ao.quantization", True),
        ("import numpy as np\n    np.core", True),
        ("import matplotlib.backends.registry", True),
        ("import matplotlib.pyplot as p\n    p.rcParams['figure.hooks'] = f", True),
        ("from IPython.display import HTML", False),
        ("from IPython.utils.importstring import import_item", True),
        ("from unittest.mock import patch", True),
        ("import reference", True),
        ("import inside", True),
        ("from .checks import judge", True),
        ("from . import checks", True),
        ("breakpoint(f)", True),
        ("c = compile", True),
        ("f.gi_code", True),
        ("f.replace(co_names=f)", True),
        ("class A:\n        __name__ = 'a'", True),
        ("from torch.utils.data import DataLoader", False),
        ("exec('x')", True),
        ("eval('x')", True),
        ("__import__('x')", True),
        ("globals()['x']", True),
        ("import sys\n    sys.modules['x']", True),
        ("import gc\n    gc.get_objects()", True),
        ("import inspect\n    inspect.stack()", True),
        ("import importlib\n    importlib.import_module(f)", True),
        ("import enum\n    enum.bltns", True),
        ("import enum\n    enum.sys", True),
        ("import pickle\n    pickle.loads(f)", True),
        ("import numpy as np\n    np.load(f, allow_pickle=True)", True),
        ("import torch\n    torch.load(f, weights_only=False)", True),
        ("import typing\n    typing.get_type_hints(f)", True),
        ("import typing\n    typing._eval_type(f, {}, {})", True),
        ("import dataclasses\n    dataclasses._create_fn('f', (), ['1'])", True),
        ("import ctypes", True),
        ("import subprocess", True),
        ("import os\n    os.system(f)", True),
        ("import os\n    os.cpu_count()", False),
        ("f.tb_frame.f_globals", True),
        ("f.gi_frame", True),
        ("f.__globals__", True),
        ("f.__get__(f)", True),
        ("getattr(f, '__globals__')", True),
        ("object.__subclasses__()", True),
        ("f.__self__", True),
        ("getattr(f, '__self__')", True),
        ("getattr(f, '__globals__', None)", True),
        ("getattr(f, '__self__', f.__self__)", True),
        ("getattr(f, x := '__self__', None)", True),
        ("import operator\n    operator.attrgetter(f)", True),
        ("import torch\n    getattr(torch, f)", True),
        ("getattr(f, 'f_' + 'back')", True),
        ("find = getattr", True),
        ("import functools\n    functools.wraps(f, (f,))", True),
        ("import enum\n    enum.global_enum(f)", True),
        ("import weakref\n    weakref.finalize(f, f)", True),
        ("import atexit\n    atexit.register(f)", True),
        ("class A:\n        def __del__(self): pass", True),
        ("f.__getattr__(f)", True),
        ("import torch\n    torch.compile(f, backend=f)", True),
        ("import torch.distributed as dist\n    dist.broadcast_object_list(f)", True),
        ("import torch\n    torch.utils.collect_env.run(f)", True),
    ],
)
def test_who_can_ask_the_checks_waits_for_all_points(reached: str, all_of_them: bool) -> None:
    flags = scan(collect([Cell("cell 1", f"def f():\n    {reached}")], F_ID, ["f"]))
    assert flags
    assert any(flag.holds_all for flag in flags) is all_of_them


def test_forbidden_names_are_found_through_aliases() -> None:
    source = "from torch.distributed.tensor import parallel as p\ndef f(m): return p.parallelize_module(m)"
    submission = collect([Cell("cell 1", source)], F_ID, ["f"])
    flags = scan(submission, ["torch.distributed.tensor.parallel.parallelize_module"])
    assert [flag.line_number for flag in flags] == [2]
