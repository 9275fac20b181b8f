"""Source text to a syntax tree, from any thread."""

from __future__ import annotations

import ast
import threading
import warnings

_ONE_AT_A_TIME = threading.RLock()


def parse(source: str) -> ast.Module:
    """`ast.parse` that may be called by several threads at once. Raises what `ast.parse` raises.

    In CPython 3.11 and 3.12 all threads share the depth that the constructor of syntax trees counts: when one
    gives way to another in the middle, either can end with `SystemError: AST constructor recursion depth
    mismatch`. Submissions are graded in threads.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a student's "\d" is theirs to see in the notebook, not the grader's
        return ast.parse(source)
