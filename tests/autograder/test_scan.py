"""The scan tells a person of what no exercise needs, with cell and line, and of nothing else."""

from __future__ import annotations

import time

import pytest
import torch
from conftest import F_ID

from autograder.grade.reference import graded_submission, solved_cells, stub_cells
from autograder.grade.scan import MOST_FLAGS, scan
from autograder.grade.watched_names import SENDS_OBJECTS, WRITES_FILES
from labkit.checks import registry
from labkit.checks.source.submission import Cell, collect

LONG = ".".join(["torch", *["nn"] * 300])
SUSPICIOUS = [
    ("import ctypes", "imports ctypes"),
    ("class A:\n    __instancecheck__ = f", "defines __instancecheck__"),
    ("class A:\n    __match_args__ = ('x',)", "defines __match_args__"),
    ("class A:\n    __array_interface__: dict = {}", "defines __array_interface__"),
    ("class A:\n    def __dlpack__(self): return self.kept", "defines __dlpack__"),
    ("import torch\ndef f(x): return torch.utils.dlpack.to_dlpack(x)", "by to_dlpack"),
    ("def f(group): return group.get_group_store()", "reaches for get_group_store"),
    ("def f(dist):\n    return dist.PrefixStore('x', dist.store)", "reaches for PrefixStore"),
    ("import json\ndef f(x): json.__path__.append(x)", "reaches for __path__"),
    ("import logging.handlers\ndef f(x): return logging.handlers.QueueListener(x)", "runs beside the check"),
    ("def f(x) -> 'g(x)': return x", "an annotation that calls"),
    ("async def f(x) -> 'g(x)': return x", "an annotation that calls"),
    ("def f():\n    import posix", "imports posix, which no exercise needs"),
    ("def f():\n    from traitlets.utils.importstring import import_item", "which no exercise needs"),
    ("import yaml\ndef f(x): return yaml.unsafe_load(x)", "imports yaml, which no exercise needs"),
    ("def f():\n    from labkit.devices.session import open_session", "imports labkit.devices.session"),
    ("def f():\n    from labkit.devices import session", "imports labkit.devices.session"),
    ("import labkit\ndef f(): return labkit.devices.session.open_session()", "reaches for labkit.devices"),
    ("def f():\n    import labkit.torch_private", "imports labkit.torch_private"),
    ("import torch\ndef f(x): torch._dynamo.config = x", "which torch keeps to itself"),
    ("def f():\n    from torch._inductor.codecache import CppCodeCache", "which torch keeps to itself"),
    ("import torch\ndef f(x): torch.ops.load_library(x)", "calls into C"),
    ("import torch\ndef f(x, g): torch.ops.c10d.send([x], g, 0, 7)", "sends past what is recorded"),
    ("def f(group): return group.boxed()", "reaches for boxed"),
    ("import torch\ndef f(x): return torch.jit.CompilationUnit(x)", "runs code from data"),
    ("def f(x, codes): return getattr(x, bytes(codes).decode())", "texts that are made of numbers"),
    ("def f(x, n): return getattr(x, n)\nclass A:\n    def g(self): return f(self, chr(95))", "of numbers"),
    ("def f(x): return x.__reduce_ex__(2)", "__reduce_ex__"),
    ("import functools\ndef f(x): functools.update_wrapper(x, f)", "update_wrapper"),
    ("from gc import get_objects", "imports gc"),
    ("import gc as collector\ndef f(): return collector.collect()", "imports gc"),
    ("import gc\ndef f(x): return gc.get_referents(x)", "walks all objects"),
    ("import gc\ndef f(): gc.freeze()", "walks all objects"),
    ("def f(x):\n    import gc\n    return gc.callbacks.append(x)", "walks all objects"),
    ("import gc\ndef f(name): return getattr(gc, name)", "walks all objects"),
    ("import gc\ndef f(x):\n    g = gc\n    return g.get_referents(x)", "walks all objects"),
    (
        "def f(x):\n    if not x: gc = x\n    import gc\n    return (gc or x).get_referents(x)",
        "walks all objects",
    ),
    ("def f(x):\n    import gc\n    return locals()['gc'].get_referents(x)", "which has gc"),
    ("def f(x):\n    import gc\n    v = vars\n    return v()['gc'].get_referents(x)", "which has gc"),
    ("import sys\ndef f(): return vars.__call__()['sys']", "which has sys"),
    ("import gc\ndef f(): gc.collect = f", "replaces gc.collect"),
    ("import gc\ndef f(): setattr(gc, 'collect', f)", "walks all objects"),
    ("import gc\ndef f(): return gc.collect.__self__", "__self__"),
    ("import sys\ndef f(): return sys.stdout", "the interpreter's own state"),
    ("import sys\ndef f(): return [sys][0]", "the interpreter's own state"),
    ("import sys\nclass A: own = sys", "the interpreter's own state"),
    ("import sys\ndef f(x=sys): return x", "the interpreter's own state"),
    ("import sys as s\ndef f(): return s.maxsize", "imports sys"),
    ("import torch.distributed as dist\ndef f(): dist.all_reduce = print", "replaces torch.distributed"),
    ("def f(): return __import__('sys')", "calls __import__"),
    ("def f(): return f.__globals__", "__globals__"),
    ("def f(stream): return stream._labkit_queue.timeline.busy", "_labkit_queue"),
    ("def f(copied): return copied.grad_fn._labkit_machine", "_labkit_machine"),
    ("def f(x): return [entry.__get__(x) for entry in x]", "__get__"),
    ("def f(x): return type(x).__dict__", "the entries of a class"),
    ("def f(x): return vars(x.__class__)", "the entries of a class"),
    ("def f(x): return vars(x.__class__)", "calls vars"),
    ("def f(x, later): x.full_tensor = later", "replaces full_tensor, by which tensors are read"),
    ("def f(x, later): x.grad.detach = later", "replaces detach"),
    ("def f(x, later): x.__dict__.update(detach=later)", "names detach"),
    ("def f(x, later): vars(x)['untyped_storage'] = later", "names untyped_storage"),
    ("def f(net): net._forward_hooks.clear()", "_forward_hooks"),
    ("def f(frame): return frame.f_back", "f_back"),
    ("from labkit.record.current import current_recorder", "the recorder"),
    ("def f(): exec('1')", "calls exec"),
    ("def f(): return open('/etc/passwd')", "calls open"),
    ("class A:\n    def __del__(self): pass", "__del__"),
    ("import torch\ndef f(): torch.allclose = 1", "replaces torch.allclose"),
    ("import torch\ndef f(): setattr(torch, 'equal', 1)", "replaces something in torch"),
    ("import os\ndef f(): return os.environ['NBGRADER_EXECUTION']", "the operating system"),
    ("def f(): return getattr(f, '__glo' 'bals__')", "__globals__"),
    ("import torch\ndef f(): return torch.sys.modules['labkit']", "reaches for modules"),
    ("import torch\ndef f(): return torch.sys.modules.get('labkit')", "reaches for modules"),
    ("import torch\ndef f(): return torch.nn.modules.module.torch.sys.modules", "reaches for modules"),
    ("from torch import nn\ndef f(): return nn.modules.module.inspect.stack()", "walks frames"),
    ("from torch import nn\ndef f(): return nn.modules", "reaches for modules"),
    ("from torch import nn\ndef f(): return nn.modules['labkit']", "reaches for modules"),
    ("from torch import nn\ndef f(): return nn.modules.get('labkit')", "reaches for modules"),
    ("from torch import nn\ndef f(x): nn.modules.loss = x", "replaces torch.nn.modules.loss"),
    ("from torch import nn\ndef f(x): nn.modules = x", "reaches for modules"),
    ("from torch import nn\ndef f(nn): return nn.modules.values()", "reaches for modules"),
    ("from torch import nn\ndef f(x):\n    for nn in x: return nn.modules.x", "reaches for modules"),
    ("from torch import nn\ndef f(x): return (nn := x).modules.x + nn.modules.x", "reaches for modules"),
    ("from torch import nn\ndef f(x):\n    match x:\n        case nn: return nn.modules.x", "for modules"),
    ("from torch import nn\nnn = f = A = 2\ndef f(): return nn.modules.x", "reaches for modules"),
    ("from torch import nn\nclass nn: pass\ndef f(): return nn.modules.x", "reaches for modules"),
    ("from torch import nn\nimport sys as nn\ndef f(): return nn.modules.get('x')", "reaches for modules"),
    ("from torch import nn\nfrom math import *\ndef f(): return nn.modules.x", "reaches for modules"),
    ("from .torch import nn\ndef f(): return nn.modules.x", "reaches for modules"),
    ("def f(): return nn.modules.batchnorm", "reaches for modules"),
    ("import torch\ndef f(torch): return torch.nn.modules.x", "reaches for modules"),
    ("import torch\ndef f(x): return x.torch.nn.modules.x", "reaches for modules"),
    ("from torch.nn import modules\ndef f(): return modules.x", "reaches for modules"),
    ("import labkit\ndef f(): return labkit.record.current", "the recorder"),
    ("import labkit\ndef f(): return getattr(labkit, 'record')", "the recorder"),
    ("import labkit\ndef f(n): return getattr(labkit, n)", "reaches into labkit"),
    ("import torch\ndef f(n): return getattr(torch, n)", "reaches into torch"),
    ("import torch.distributed as dist\ndef f(n): return f(dtype=getattr(dist, n))", "reaches into torch"),
    ("import torch\ndef f(n): return torch.__dict__[n]", "reaches into torch"),
    ("from torch import sys\ndef f(): return sys", "reaches for sys"),
    ("import torch\ndef f(): return torch.importlib.import_module('x')", "imports by name"),
    ("import collections\ndef f(): return collections._sys._current_frames()", "interpreter's own state"),
    ("import tempfile\ndef f():\n    s = tempfile._sys\n    return s._current_frames()", "interpreter's own"),
    ("from collections import _sys\ndef f(): return _sys._current_frames()", "reaches for _sys"),
    ("import numpy as np\ndef f(x): return np.lib.stride_tricks.as_strided(x, (9,))", "reads memory"),
    ("def f(x): return getattr(x, 'f_' + 'back')", "put together"),
    ("def f(x): return getattr(x, ''.join(('f_', 'back')))", "put together"),
    ("def f(x):\n    match x:\n        case object(f_back=y): return y", "f_back"),
    ("def f():\n    run = eval\n    return run('1')", "calls eval"),
    ("def f(): return __builtins__['x']", "__builtins__"),
    ("import numpy as np\ndef f(x): return np.memmap('/tmp/x', shape=x.shape)", "no check counts it"),
    ("def f(x): return x.clone().share_memory_()", "no check counts it"),
    ("import time\ndef f(): time.monotonic = f", "replaces time.monotonic"),
    ("def f(x): type(x).detach = f", "replaces something in a class"),
    ("def f(x): x.__class__.detach = f", "replaces something in a class"),
    ("def f(x): setattr(type(x), 'detach', f)", "replaces something in a class"),
    ("import torch\nclass A(torch.Tensor): pass", "a kind of torch.Tensor"),
    ("from torch import Tensor\nclass A(Tensor): pass", "a kind of torch.Tensor"),
    ("import labkit\ndef f(n): return [*map(getattr, [labkit], [n])]", "gives getattr another name"),
    ("def f(x, n):\n    find = getattr\n    return find(x, n)", "gives getattr another name"),
    ("import labkit\ndef f(): return (lambda lab: lab)(labkit)", "hands on labkit"),
    ("import labkit\ndef f(lab=labkit): return lab", "hands on labkit"),
    ("import torch\nm = torch.nn.functional\ndef f(): return m.importlib.x('os')", "nn.functional.importlib"),
    ("import torch\ndef f():\n    m = torch.nn\n    n = m.functional\n    return n.importlib", "importlib"),
    ("import torch\ndef f(): return [torch.nn.functional][0].importlib", "hands on torch.nn.functional"),
    ("import torch\ndef g(m): return m.importlib\ndef f(): return g(torch.nn)", "hands on torch.nn"),
    ("import torch\ndef f(m=torch.nn): return m", "hands on torch.nn"),
    ("import torch\nclass A:\n    m = torch.nn.functional", "hands on torch.nn.functional"),
    ("import torch\ndef f(self): self.m = torch.nn", "hands on torch.nn"),
    ("import torch\ndef f():\n    m = torch.distributed\n    m.all_reduce = f", "replaces torch.distributed"),
    (
        "import torch.distributed as dist\ndef f():\n    d = dist\n    d.all_reduce = f",
        "hands on torch.distr",
    ),
    ("import labkit\ndef f(): return [labkit for labkit in [1]] + [labkit]", "hands on labkit"),
    ("import labkit as t\ndef f(): return t.record.x\ndef A():\n    import math as t", "for labkit.record"),
    ("def f(): return 'cur' + 'rent_recorder'", "puts together"),
    ("def f(): return 'redrocer_tnerruc'[::-1]", "puts together"),
    ("def f(o): return f'__imp{o}rt__' + '__imp' f\"{'o'}\" 'rt__'", "puts together"),
    ("def f(): return '__glo'", "puts together"),
    ("def f(): return b'clabkit.record.current\\ncurrent_recorder\\n.'", "puts together"),
    ("import torch\ndef f(x): return torch.load(x, weights_only=False)", "what was pickled"),
    ("import torch\ndef f(x): return torch.load(x, **{'weights_only': 0})", "what was pickled"),
    ("import numpy as np\ndef f(x): return np.load(x, None, True)", "what was pickled"),
    ("from numpy import load\ndef f(*x): return load(*x)", "what was pickled"),
    ("import numpy as np\nread = np.load\ndef f(x): return read(x, None, True)", "what was pickled"),
    ("import numpy as np\ndef f(x): return [*map(np.load, x, (None,), (True,))]", "hands on numpy.load"),
    ("def f(x: '1 if print() else 2'): pass", "an annotation that calls"),
    ("from typing import get_type_hints\ndef f(): return get_type_hints(f)", "runs code from data"),
    ("import string\ndef f(x): return string.Formatter().get_field('0.x', (x,), {})", "attributes by text"),
    ("import timeit\ndef f(): return timeit.timeit('1')", "runs code from data"),
    ("class A:\n    import labkit as lab", "as a part of a class"),
    (
        "class A:\n    if 1:\n        import gc\ndef f(x): return A.gc.get_referents(x)",
        "as a part of a class",
    ),
    ("def f(x): return type('B', (type(x),), {})", "a class of its parts"),
    ("def f(x):\n    class B(type(x)): pass\n    return B", "a class that it looks up"),
    ("def f(x):\n    kind = type(x)\n    kind.detach = f", "replaces something in a class"),
    ("import torch\ndef f():\n    kind = torch.Tensor\n    class B(kind): pass", "a kind of torch.Tensor"),
    ("def f(self, x): self.kept = x.numpy().copy()", "no check counts it"),
    ("def f(self, x):\n    a = bytes(x.numpy())\n    self.kept['a'] = a", "no check counts it"),
    ("import enum\ndef f(): enum.bltns.exec('1')", "enum.bltns: it is builtins (changes the language)"),
    ("from enum import bltns\ndef f(): bltns.exec('1')", "enum.bltns: it is builtins"),
    ("import enum\ndef f(): getattr(enum, 'bltns').exec('1')", "enum.bltns: it is builtins"),
    ("import enum\nb = enum.bltns\ndef f(): b.exec('1')", "enum.bltns: it is builtins"),
    ("import os.path as p\ndef f(): return p.genericpath.os", "genericpath"),
    ("import json\ndef f(x): json.codecs.open(x)", "json.codecs: it is codecs, which no exercise needs"),
    ("import torch\ndef f(x): return torch.nn.functional.torch.jit.script(x)", "runs code from data"),
    ("from torch.nn.functional import *\ndef f(): importlib.import_module('x')", "imports by name"),
    ("import io\ndef f(x): return io.open(x)", "io.open: it is builtins.open (works on files)"),
    ("import types\ndef f(x): return types.LambdaType(x, {})", "it is types.FunctionType"),
    ("import numpy as np\ndef f(x): return np.lib.npyio.load(x, None, True)", "runs code from data"),
    ("import numpy as np\ndef f(x): return np.lib.format.read_array(x, True)", "runs code from data"),
    (
        "import torch.distributed.checkpoint as dcp\ndef f(x): return dcp.FileSystemReader(x)",
        "runs code from",
    ),
    ("import torch\ndef f(x): return torch.utils.benchmark.Timer(x)", "runs code from data"),
    (
        "from typing_extensions import get_type_hints\ndef f(x): return get_type_hints(x)",
        "runs code from data",
    ),
    ("import typing_extensions as t\ndef f(x): return t.get_type_hints(x)", "runs code from data"),
    ("import typing\ndef f(): return typing.List['1'].__args__[0]._evaluate({}, {}, set())", "_evaluate"),
    ("import typing\ndef f(x): return typing._eval_type(x, {}, {})", "which typing keeps to itself"),
    (
        "import dataclasses\ndef f(): return dataclasses._create_fn('f', (), ['1'])",
        "dataclasses keeps to itself",
    ),
    ("from dataclasses import _create_fn\ndef f(): return _create_fn('f', (), ['1'])", "keeps to itself"),
    ("import enum\ndef f(x): return enum.IntEnum._convert_('X', x, bool)", "_convert_"),
    ("def f():\n    import enum\n    return locals()['enum'].bltns", "beside what is imported there"),
    ("def f(x): return getattr(x, '__globals__')", "__globals__, by its name as a text"),
    ("import logging\ndef f(x): x['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] = '1'", "what was pickled"),
    ("from torch.overrides import TorchFunctionMode\nclass A(TorchFunctionMode): pass", "changes what torch"),
    ("import contextlib\nclass A(contextlib.redirect_stdout): pass", "a kind of contextlib.redirect_stdout"),
    (
        "import contextlib\nr = contextlib.redirect_stderr\nclass A(r): pass",
        "a kind of contextlib.redirect_st",
    ),
    ("from contextlib import redirect_stdout as r\ndef f(x):\n    p = r(x)\n    with p: pass", "by text"),
    ("import functools\ndef f(x, n): functools.wraps(x, assigned=(n,))(f)", "looks up attributes by text"),
    ("from functools import wraps as w\ndef f(x, n): w(x, (n,))(f)", "looks up attributes by text"),
    ("from functools import *\ndef f(x, n): wraps(x, **n)(f)", "looks up attributes by text"),
    ("import functools\nw = functools.wraps\ndef f(x, n): w(*x)(f)", "looks up attributes by text"),
    ("from functools import partial, wraps\ndef f(x): partial(wraps, updated=x)", "hands on functools.wraps"),
    ("import functools\ndef f(x): getattr(functools, 'wraps')(x, x)(f)", "hands on functools.wraps"),
    ("import contextlib\ndef f(x): contextlib.wraps(x, x)(f)", "it is functools.wraps (looks up attributes"),
    ("from dataclasses import make_dataclass as m\ndef f(x): return m('A', [x])", "runs code from data"),
    ("import dataclasses\ndef f(x): return dataclasses.make_dataclass('A', [(x, int)])", "runs code from"),
    ("import dataclasses\ndef f(x): return dataclasses.make_dataclass('A', fields=x)", "runs code from"),
    (
        "import abc\nclass A(abc.ABC): pass\ndef f(x):\n    A.register(object)\n"
        "    match x:\n        case A(y): return y",
        "takes attributes by place",
    ),
    (
        "class A:\n    @classmethod\n    def __subclasshook__(cls, x): return True\n"
        "def f(x):\n    match x:\n        case A(y): return y",
        "takes attributes by place",
    ),
    (
        "from typing import Protocol, runtime_checkable\n@runtime_checkable\nclass A(Protocol): x: int\n"
        "def f(x):\n    match x:\n        case A(y): return y",
        "takes attributes by place",
    ),
    ("from torch.utils._pytree import enum_object_hook\ndef f(x): enum_object_hook(x)", "torch keeps to its"),
    ("import torch.utils._pytree as t\ndef f(x): return t.treespec_loads(x)", "which torch keeps to itself"),
    (
        "from torch.utils import _pytree\ndef f(x): return _pytree.GetAttrKey(x)",
        "which torch keeps to itself",
    ),
    ("import dataclasses\ndef f(x): dataclasses.fields(x)[0].name = '1'", "sets what a field"),
    ("from dataclasses import fields\ndef f(x, n):\n    for y in fields(x): y.name = n", "sets what a field"),
    (
        "from dataclasses import fields\ndef f(x, n):\n    for y in fields(x): setattr(y, n, n)",
        "what a field",
    ),
    ("import dataclasses as d\nA = d.field()\nclass B:\n    x: int = A\ndef f(): A.type = B", "what a field"),
    ("def f(x): x.__dataclass_fields__['x'].name = '1'", "reaches for __dataclass_fields__"),
    (
        "import functools\n@functools.singledispatch\ndef A(x): pass\n"
        "def f(t):\n    def g(x: t): pass\n    A.register(g)",
        "registers a function for what may be no class",
    ),
    (
        "from functools import singledispatch as s\n@s\ndef A(x): pass\n"
        "def f(t):\n    @A.register\n    def _(x: t): pass",
        "registers a function for what may be no class",
    ),
    (
        "from functools import singledispatch as s\ndef f(x): s(f).register(x.__init__)",
        "registers a function for what may be no class",
    ),
    ("import functools\ndef f(x): map(functools.singledispatch(f).register, x)", "for what may be no class"),
    ("import tempfile\ndef f(x): return tempfile.NamedTemporaryFile().__getattr__(x)", "for __getattr__"),
    ("class A:\n    def g(self, x): return super(A, self).__getattr__(x)", "reaches for __getattr__"),
    ("class A:\n    __getattr__ = f", "defines __getattr__"),
    ("import enum\ndef f(x): enum.global_enum(x)", "puts names into another module"),
    ("from enum import global_enum as g\ndef f(x): g(x)", "puts names into another module"),
    ("class A:\n    __module__ = 'labkit'", "defines __module__"),
    ("class A: pass\ndef f(x): A.__module__ = x", "defines __module__"),
    ("def f(x): setattr(f, '__module__', x)", "defines __module__"),
    ("import weakref\ndef f(x): weakref.finalize(x, f)", "when the answer has been written"),
    ("import atexit\ndef f(x): atexit.register(f)", "when the answer has been written"),
    ("import weakref\ndef f(x): return weakref.ref(x, f)", "when the answer has been written"),
    ("from weakref import proxy\ndef f(x): return proxy(x, f)", "when the answer has been written"),
    ("import weakref\nclass A(weakref.ref): pass", "a kind of weakref.ref"),
    ("import weakref\ndef f(x): return [*map(weakref.ref, x, x)]", "hands on weakref.ref"),
    ("import weakref\ndef f(x): return weakref.ref.__call__(weakref.WeakMethod(x))", "weakref.WeakMethod"),
    (
        "import copy\nclass A:\n    def __new__(cls): return cls.target\ndef f(): return copy.copy(A())",
        "copies a class that says itself",
    ),
    (
        "from copy import deepcopy\nclass A:\n    __new__ = f\ndef f(x): return deepcopy(x)",
        "copies a class that says itself",
    ),
    ("import torch\ndef f(x, y): return torch.load(x, pickle_module=y)", "what was pickled"),
    ("import torch\ndef f(x, y): return torch.load(x, None, y)", "what was pickled"),
    ("import torch\ndef f(x): return [*map(torch.load, x, x, x)]", "hands on torch.load"),
    ("import torch\ndef f(): return torch.utils.collect_env.run('true')", "starts programs"),
    ("import torch\ndef f(x): return torch.compile(f, backend=x)", "a compiler of its own"),
    ("def f(model, x): return model.compile(**x)", "a compiler of its own"),
    ("import torch\nfrom functools import partial\ndef f(x): partial(torch.compile, backend=x)", "hands on"),
    ("import torch.distributed as dist\ndef f(x): dist.all_gather_object(x, x)", "another rank sends"),
    ("import torch\ndef f(x): torch.distributed.distributed_c10d.scatter_object_list(x)", "another rank"),
    ("def f():\n    from torch.distributed.pipelining import PipelineStage", "another rank sends"),
    ("import torch\ndef f(x): return torch._C._current_graph_task_id", "torch's internals"),
    ("import torch\ndef f(x): return torch._C._current_graph_task_id.__self__()", "torch's internals"),
    ("import torch\ndef f(x): return torch._C._set_grad_enabled()", "torch's internals"),
    (f"def f():\n    if 0: from {LONG} import x", "which are not followed"),
    (f"def f():\n    if 0: import {LONG}", "which are not followed"),
    (f"def f(): return {LONG}", "which are not followed"),
    ("import torch.distributed as dist\nf = dist.Work.wait", "takes torch.distributed.Work.wait out of"),
    ("import torch.distributed as dist\nf = [dist.ProcessGroup.allreduce]", "ProcessGroup.allreduce out of"),
    (
        "from torch import Tensor\ndef f(x, read=Tensor.tolist): return read(x)",
        "Tensor.tolist out of",
    ),
    (
        "from torch import Tensor\nA = Tensor\ndef f(x): x.read = getattr(A, 'item')",
        "takes torch.Tensor.item out",
    ),
    (
        "import torch\nA = torch.futures.Future\nf = A.wait",
        "Future.wait out of its class",
    ),
]
WITH_FILES = [
    "import tempfile, torch\ndef f(x):\n    file = tempfile.TemporaryFile()\n    torch.save(x, file)",
    "import tempfile\ndef f(x): return tempfile.mkdtemp()",
    "from tempfile import TemporaryDirectory as T\ndef f(x): return T()",
    "from pathlib import Path\ndef f(x): Path('a').write_bytes(x)",
    "import numpy as np\ndef f(x): np.save('a', x)",
    "def f(x): x.numpy().tofile('a')",
    "import io, torch\ndef f(x, at=io.BytesIO()): torch.save(x, at)",
    "from safetensors.torch import save_file\ndef f(x): save_file({'x': x}, 'a')",
]
HONEST = [
    "def f(x): return x.detach().to('cpu').clone(), dict(cpu=x)",
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


@pytest.mark.parametrize(("source", "why"), SUSPICIOUS)
def test_what_is_told(source: str, why: str) -> None:
    names = ["f", "A", "sys", "ctypes", "get_objects", "dist", "current_recorder", "os", "torch"]
    flags = scan(collect([Cell("cell 4", source)], F_ID, names))
    assert any(why in flag.why for flag in flags), flags
    assert all(flag.cell == "cell 4" and flag.line for flag in flags)


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


def test_a_models_own_modules_are_nothing_to_tell() -> None:
    source = "def f(model): return [m for m in model.modules() if not list(m.children())]"
    assert scan(collect([Cell("cell 4", source)], F_ID, ["f"])) == []


def test_where_it_is() -> None:
    flags = scan(collect([Cell("cell 7", "x = 1\n\n\nimport ctypes")], F_ID, ["ctypes"]))
    assert (flags[0].cell, flags[0].line_number, flags[0].line) == ("cell 7", 4, "import ctypes")


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
    assert scan(collect([Cell("cell 1", source)], F_ID, ["f"])) == []


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
