"""Which names a cell needs from the notebook: Python's rules of scope, case by case."""

from __future__ import annotations

import pytest

from labkit.launch.handover.cell_names import needed_names

CASES = {
    "model = DDP(model)": "DDP model",
    "w += 1": "w",
    "xs[0] += y": "xs y",
    "xs = xs + [3]": "xs",
    "x = 1\nprint(x)": "print",
    "y = f(x)\nprint(len(y))\ndef g(): return h": "f x print len h",
    "[i * a for i in xs if i > b]": "a xs b",
    "i = [i for i in i]": "i",
    "{k: v for k, v in d.items()}": "d",
    "(n := m) and n": "m n",
    "while (line := read()): print(line)": "read print",
    "a or (b := 1)\nb": "a b",
    "f'{a}{b!r:{w}}'": "a b w",
    "g = lambda q=d: q + e": "d e",
    "@wrap(k)\ndef f(x: T = D) -> U:\n  y = x\n  return y + z": "wrap k T D U z",
    "def f():\n  global c\n  c += 1\nf()": "c",
    "def f():\n  global c\n  return c": "c",
    "def outer():\n  v = 1\n  def inner():\n    nonlocal v\n    v += w\n  return inner": "w",
    "def fact(n): return n * fact(n - 1)": "fact",
    "class A(B, metaclass=M):\n  z = z\n  def f(self): return z, g": "B M z g",
    "del x": "x",
    "x = 1\ndel x\nx": "x",
    "try:\n  a\nexcept E as e:\n  print(e)\nelse:\n  b\nfinally:\n  c": "a E print b c",
    "try:\n  import fast as m\nexcept ImportError:\n  m = None\nm": "ImportError",
    "from math import *\nsqrt(2)": "sqrt",
    "import a.b, c as d\na, d": "",
    "for i in xs:\n  print(i)\ni": "xs print i",
    "for d[k] in xs: pass": "d k xs",
    "if p:\n  x = 1\nelse:\n  x = 2\nx": "p",
    "if p:\n  x = 1\nx": "p x",
    "with open(name) as f, f as g:\n  f.read(g)\nf": "open name",
    "match p:\n  case C(q, r=1) if q > t:\n    q, s\n  case [a, *rest]: rest": "p C t s",
    "x: int\nx": "int x",
    "x: int = 3\nx": "int",
    "(a, *b), c.d = e\na, b": "e c",
    "await x": "x",
    "async def f():\n  async for i in s: await i": "s",
    "assert a, b": "a b",
}


@pytest.mark.parametrize("source", CASES)
def test_needed_names(source: str) -> None:
    assert needed_names(source) == set(CASES[source].split())
