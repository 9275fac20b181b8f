"""Takes what an exercise forbids out of a rank, under whatever name a student's code may reach it.

The functions themselves are changed, not names that lead to them: every function of a forbidden object raises
when it is called. Its code cannot be had again either: to build a function of it, to execute it, or to load
the file it is from once more raises too, and the files are not seen by the rank.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch.distributed as dist

from labkit.checks.forbidden import ForbiddenCall, refuse
from labkit.torch_private_distributed import BACKEND, CALLS, collective_operators, replace_operator

_REMAKES_CODE = ("exec", "function.__new__", "code.__new__")  # what Python tells an audit hook
_DISTINCTIVE = 64  # bytes of instructions that no short function of a student's will have by chance
_NAME = "NAME"  # in `_refused`, where the name goes
_DISTRIBUTED = "torch.distributed."


def disarm(names: Sequence[str]) -> None:
    """Make these dotted names, as far as they are loaded, raise ForbiddenCall. For good: a rank ends with
    its job.
    """
    codes = {_key(code) for name in names for code in _disarmed(name)}
    files = set(sources_of(names))
    sys.addaudithook(_refuse_to_remake(codes, files))
    operations = {name.removeprefix(_DISTRIBUTED).removesuffix("_into_tensor") for name in names}
    if any(name.startswith(_DISTRIBUTED) for name in names):
        _refuse_where_they_are_sent(operations)


def sources_of(names: Sequence[str]) -> Iterator[str]:
    """The files, as text and compiled, that the loaded ones of these names are written in."""
    modules = {getattr(found, "__module__", "") for name in names if (found := _loaded(name)) is not None}
    for module in modules:
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        if file.endswith(".py") and Path(file).name != "__init__.py":
            yield file
            yield importlib.util.cache_from_source(file)


def _loaded(dotted: str) -> Any:
    """The object a dotted name stands for, where its module is loaded; None otherwise."""
    module, _, name = dotted.rpartition(".")
    loaded = sys.modules.get(module)
    return vars(loaded).get(name) if isinstance(loaded, ModuleType) else None


def _disarmed(dotted: str) -> Iterator[CodeType]:
    """Disarm one name; yields the code that its functions had.

    Not that of a decorator, which everything it decorates shares: torch 2.15 sets it anew in each, so that a
    student's own `@torch.no_grad()` would be refused.
    """
    for function in _functions_of(_loaded(dotted)):
        if "__wrapped__" not in vars(function):
            yield from _with_inner(function.__code__)
        function.__code__ = _refusal(dotted, len(function.__code__.co_freevars))


def _functions_of(found: Any) -> Iterator[FunctionType]:
    """A function with those it wraps; of a class, all it defines."""
    if isinstance(found, type):
        members = (getattr(member, "__func__", member) for member in vars(found).values())
        yield from (
            f for member in members if isinstance(member, FunctionType) for f in _functions_of(member)
        )
    while isinstance(found, FunctionType):
        yield found
        found = vars(found).get("__wrapped__")


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _refusal(dotted: str, free: int) -> CodeType:
    """Code that raises ForbiddenCall, for a function that closes over so many variables."""
    code = _refused.__code__
    constants = tuple(dotted if constant == _NAME else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_freevars=tuple(f"_{n}" for n in range(free)))


def _refused(*_: object, **__: object) -> None:
    """What is left of a forbidden function. Its globals are another module's: it finds what it needs."""
    __import__("labkit.checks.forbidden", fromlist=["refuse"]).refuse("NAME")


def _key(code: CodeType) -> tuple[bytes, tuple[str, ...]]:
    return code.co_code, code.co_names


def _refuse_to_remake(codes: set[tuple[bytes, tuple[str, ...]]], files: set[str]) -> Any:
    """An audit hook, which Python calls before it does such a thing, and which nothing takes off again."""

    instructions = {code for code, _ in codes if len(code) >= _DISTINCTIVE}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "object.__setattr__" and arguments[1] == "__code__":
            code = arguments[2]
        elif event in _REMAKES_CODE and arguments:
            code = arguments[0]  # for a new code object, its instructions
        else:
            return
        remade = code in instructions if isinstance(code, bytes) else _is_one_of(code, codes, files)
        if remade:
            raise ForbiddenCall("code that this exercise is about building cannot be run again")

    return hook


def _is_one_of(code: Any, codes: set[tuple[bytes, tuple[str, ...]]], files: set[str]) -> bool:
    return isinstance(code, CodeType) and (_key(code) in codes or code.co_filename in files)


def _refuse_where_they_are_sent(operations: set[str]) -> None:
    """Refuse collectives where they end: as torch's operators, which ProcessGroup and all of torch lead to,
    and at the backend of a group. At ProcessGroup too, so that an error shows the caller's line.
    """
    for name, call in CALLS.items():
        for kind in (dist.ProcessGroup, BACKEND):
            if call.op in operations and hasattr(kind, name):
                setattr(kind, name, _refusing(_DISTRIBUTED + call.op))
    for name in collective_operators(operations):
        replace_operator(name, _refusing(name))


def _refusing(dotted: str) -> Any:
    def method(*_: object, **__: object) -> None:
        refuse(dotted)

    return method
