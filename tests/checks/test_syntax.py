"""Syntax trees from several threads at once, as grading makes them."""

from __future__ import annotations

import ast
import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest

from labkit.checks.source import statements
from labkit.checks.source.syntax import parse


class _Finalised:
    """Garbage with a finalizer: what lets another thread in while a tree is being built."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(50):
            pass


def _parse_often(source: str) -> set[str]:
    trees = set()
    for _ in range(60):
        garbage = [_Finalised() for _ in range(5)]
        del garbage
        trees.add(ast.dump(parse(source))[:200])
    return trees


@pytest.mark.days
def test_threads_do_not_disturb_each_other() -> None:
    source = inspect.getsource(statements)
    with ThreadPoolExecutor(4) as pool:
        trees = list(pool.map(_parse_often, [source] * 4))
    assert trees == [{ast.dump(ast.parse(source))[:200]}] * 4
