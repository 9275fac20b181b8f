"""Methods of torch's that are taken out of their classes and kept: called by such a name later, they are past
what counts the calls of a method where it is at home.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from autograder.grade.watched_names import READ_OUT

# Of what communicates, no answer needs a method by itself; of tensors, not what reads their numbers.
_COMMUNICATES = re.compile(r"torch\.(\w+\.)*(Work|Future|ProcessGroup\w*|Backend)\.[a-z_]\w*")
_OF_TENSORS = re.compile(
    r"torch\.(\w+\.)*(Tensor|Parameter|Buffer|UntypedStorage|TypedStorage)\.(?P<method>\w+)"
)


def taken_out(nodes: Sequence[ast.AST]) -> Iterator[ast.Attribute]:
    """Attributes that are used as values: neither called where they stand, nor handed to `map` there."""
    passed: set[ast.AST] = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="map"), args=[function, *_]):
                passed |= {node.func, function}
            case ast.Call():
                passed.add(node.func)
    attributes = (node for node in nodes if isinstance(node, ast.Attribute))
    yield from (node for node in attributes if isinstance(node.ctx, ast.Load) and node not in passed)


def is_watched_at_home(dotted: str) -> bool:
    """Whether this is a method, by its full name, whose calls checks count."""
    of_tensors = _OF_TENSORS.fullmatch(dotted)
    return bool(_COMMUNICATES.fullmatch(dotted) or (of_tensors and of_tensors["method"] in READ_OUT))
