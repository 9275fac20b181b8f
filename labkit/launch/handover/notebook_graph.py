"""What names of a notebook are bound to, and the objects that are reached from there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.launch.handover.identity import Content, Hold, hold, keeps_identity, keeps_identity_by_name
from labkit.launch.handover.pickling import innermost

Token = int | bytes  # what a name is bound to: a numbered object, or a value with this digest

_SHELL = re.compile(r"_+|_+i*|_i?\d+|_[dio]h|_exit_code|__\w+__|In|Out|exit|quit|open|get_ipython|display")
_OF_RANKS = ("rank", "world_size")


@dataclass(frozen=True)
class Refusal:
    """Why a name cannot be sent, and what to do."""

    why: str
    hint: str


class CannotSend(Exception):
    """A name that a rank lacks cannot be sent."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.why)
        self.refusal = refusal


class NotebookObjects:
    """Numbers for the notebook's objects that keep their identity."""

    def __init__(self) -> None:
        self.passing: set[type] = set()  # kinds that are made while something is pickled, and gone after it
        self.pushed: dict[str, Any] = {}  # what `Session.push` gave a name
        self._numbers: dict[int, tuple[Hold, int]] = {}
        self._named: set[int] = set()
        self._last = 0

    def look_at(self, notebook: Mapping[str, Any]) -> None:
        """Note which lists and the like have names, and let go of what is gone or has lost its name."""
        values = (*notebook.values(), *self.pushed.values())
        self._named = {id(value) for value in values if keeps_identity_by_name(value)}
        for identity, (held, _) in list(self._numbers.items()):
            value = held()
            if value is None or (identity not in self._named and keeps_identity_by_name(value)):
                del self._numbers[identity]

    def number(self, value: Any) -> int | None:
        """The object's number; None for what travels by value."""
        if keeps_identity_by_name(value):
            if id(value) not in self._named:
                return None
        elif type(value) in self.passing or not keeps_identity(value):
            return None
        known = self._numbers.get(id(value))
        if known is None or known[0]() is not value:
            self._last += 1
            known = self._numbers[id(value)] = (hold(value), self._last)
        return known[1]

    def living(self) -> set[int]:
        """The numbers in use."""
        return {number for _, number in self._numbers.values()}


class Graph:
    """Names, the tokens of what they are bound to, and by number the objects below with their digests."""

    def __init__(self, numbers: NotebookObjects, notebook: Mapping[str, Any]) -> None:
        self.notebook, self.numbers = notebook, numbers
        self.tokens: dict[str, Token] = {}
        self.refused: dict[str, Refusal] = {}
        self.objects: dict[int, Any] = {}
        self.digests: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}
        self._edges: dict[int | str, list[int]] = {}

    def include(self, names: Iterable[str], limit: float) -> None:
        """Look at these names and those that functions among them use. limit: bytes of one name's value."""
        todo = sorted(names)
        while todo:
            name = todo.pop()
            if name in self._edges or not travels(name, self.notebook):
                continue
            self._edges[name] = []
            try:
                todo += sorted(self._bind(name, limit))
            except Exception as error:
                self.tokens.pop(name, None)
                self.refused[name] = _unsendable(name, self.notebook[name], error)

    def reach(self, names: Iterable[str]) -> set[int]:
        """The numbers of all objects that are reached from these names."""
        found: set[int] = set()
        todo = [number for name in names for number in self._edges.get(name, ())]
        while todo:
            number = todo.pop()
            if number not in found:
                found.add(number)
                todo += self._edges[number]
        return found

    def _bind(self, name: str, limit: float) -> set[str]:
        """Look at one name; the globals that functions in it use."""
        value = self.notebook[name]
        number = self.numbers.number(value)
        if number is None:
            content, children = self._content(value)
            token: Token = content.digest
            used, size = content.names | self._explore(children), content.size
        else:
            token, children, size = number, [(number, value)], 0
            used = self._explore(children)
        self._edges[name] = [child for child, _ in children]
        size += sum(self._sizes[child] for child in self.reach([name]))
        if size > limit:
            self.refused[name] = _too_large(name, size, limit)
        else:
            self.tokens[name] = token
        return used

    def _explore(self, objects: Iterable[tuple[int, Any]]) -> set[str]:
        used: set[str] = set()
        todo = list(objects)
        while todo:
            number, value = todo.pop()
            if number not in self.digests:
                content, children = self._content(value)
                used |= content.names
                self.objects[number], self.digests[number] = value, content.digest
                self._sizes[number] = content.size
                self._edges[number] = [child for child, _ in children]
                todo += children
        return used

    def _content(self, value: Any) -> tuple[Content, list[tuple[int, Any]]]:
        """The object's content and the numbered objects in it, without those made for the pickle alone."""
        while True:
            content = Content(value, self.notebook, self.numbers.number)
            held = [(type(child), hold(child)) for child in content.children]
            content.children.clear()
            gone = {kind for kind, child in held if child() is None}
            if not gone:
                children = [child() for _, child in held]
                return content, [(self.numbers.number(child) or 0, child) for child in children]
            self.numbers.passing |= gone


def travels(name: str, notebook: Mapping[str, Any]) -> bool:
    """Whether the notebook has this name, and it is neither IPython's nor the ranks' own."""
    return name in notebook and name not in _OF_RANKS and not _SHELL.fullmatch(name)


def _unsendable(name: str, value: Any, error: Exception) -> Refusal:
    path, part = innermost(value)
    kind = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
    return Refusal(
        f"`{name}{path}`, which the cell uses, cannot be sent to the ranks: it is a {kind} ({error})",
        f"make `{name}` in the cell, on each rank, instead of in the notebook",
    )


def _too_large(name: str, size: int, limit: float) -> Refusal:
    return Refusal(
        f"`{name}`, which the cell uses, has {size / 2**20:.0f} MiB: more than the {limit / 2**20:.0f} MiB "
        "of a value that go along with a cell",
        f"make or load it in the cell, on each rank, or send it all the same, with `%%ranks --push {name}`",
    )
