"""What a student's functions give is made when they are asked, under the eyes of the check."""

from __future__ import annotations

import torch

from labkit.checks.rank import load_student
from labkit.checks.settled import settled
from labkit.checks.source.submission import Cell, collect

LAZY = """
import collections, functools, torch

made = []

def late(n):
    for i in range(n):
        made.append(i)
        yield i

class Pair:
    def __getitem__(self, number):
        made.append(number)
        return (3, 4)[number]

class Rows(list):
    def __iter__(self):
        made.append("rows")
        return super().__iter__()

Named = collections.namedtuple("Named", "out lse")

def generator():
    return late(2)

def inside():
    return {"a": [late(2)]}

def by_number():
    return Pair()

def own_list():
    return Rows([1, 2])

@functools.lru_cache
def cached():
    return map(made.append, "xy")

class as_class:
    def __new__(cls):
        return late(1)

def named():
    return Named(1, 2)

def own_use():
    return [type(late(1)).__name__, type(generator()).__name__]
"""
NAMES = ["made", "as_class", "generator", "inside", "by_number", "own_list", "cached", "named", "own_use"]


def test_what_is_lazy_is_made_at_once() -> None:
    student = load_student(collect([Cell("cell 1", LAZY)], "", NAMES))
    made = student.made
    for ask, found, steps in [
        (student.generator, (0, 1), [0, 1]),
        (student.inside, {"a": [(0, 1)]}, [0, 1]),
        (student.by_number, (3, 4), [0, 1, 2]),
        (student.own_list, (1, 2), ["rows"]),
        (student.as_class, (0,), [0]),
        (student.cached, (None, None), ["x", "y"]),
    ]:
        made.clear()
        assert ask() == found
        assert made == steps


def test_what_is_there_stays_the_same_object() -> None:
    student = load_student(collect([Cell("cell 1", LAZY)], "", NAMES))
    assert student.named().lse == 2
    assert student.own_use() == ["generator", "generator"]  # among themselves they are as they are
    for value in ([1, [2]], {"a": (torch.ones(1),)}, torch.nn.ModuleList(), "text", (1, None)):
        assert settled(value) is value
