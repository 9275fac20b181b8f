"""The notebook's side of what a cell uses: what of it goes to which rank. README.md has the rules."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import PickleBuffer
from typing import Any

from labkit.launch.handover.identity import CONTAINERS, SharedPickler, tensor_module
from labkit.launch.handover.notebook_graph import CannotSend, Graph, NotebookObjects, Token, travels
from labkit.launch.handover.parcels import SMALLEST, parcel

LARGEST = 64 << 20  # bytes of one name's value that go along with a cell; larger data belongs on the ranks


@dataclass
class Known:
    """What one rank has taken: the contents of objects, by number, and what names were bound to."""

    objects: dict[int, bytes] = field(default_factory=dict)
    names: dict[str, Token] = field(default_factory=dict)


@dataclass
class _Pack:
    """What ranks that know the same are to take, and so will know; `gone`: objects that are no more."""

    for_whom: tuple[Known, set[str]]
    news: Known
    gone: list[int]
    message: dict[str, Any] | None = None


class Offer:
    """What a cell needs of the notebook. First each rank's `question`, then `decide`, then `pack` for each.

    push: names that are sent whatever the ranks have. told: what the person has been told of before.
    """

    def __init__(self, graph: Graph, known: Sequence[Known], told: set[Any], push: Collection[str]) -> None:
        self._graph, self._known, self._told = graph, known, told
        self._push = graph.tokens.keys() & set(push)
        self._pushed = graph.reach(self._push)
        self._kept_names: set[str] = set()
        self._kept_objects: set[int] = set()
        self._absent: dict[int, set[str]] = {}
        self._packs: list[_Pack] = []
        self._packed: dict[int, _Pack] = {}

    def question(self, rank: int) -> dict[str, Any] | None:
        """Which of these names and objects has the rank of its own? None when there is nothing to ask."""
        known, graph = self._known[rank], self._graph
        names: dict[str, Token | None] = dict.fromkeys(graph.refused)
        for name in graph.tokens.keys() - self._push:
            if known.names.get(name) != graph.tokens[name]:
                names[name] = graph.tokens[name]
        objects = [
            number
            for number in graph.reach(graph.tokens) - self._pushed
            if known.objects.get(number, graph.digests[number]) != graph.digests[number]
        ]
        return {"names": names, "objects": objects} if names or objects else None

    def decide(self, answers: Mapping[int, Mapping[str, Any]]) -> list[str]:
        """What stays as it is on the ranks, by their answers; sentences for the person.

        CannotSend: a name that a rank lacks is refused.
        """
        own = {name for answer in answers.values() for name in answer["own"]}
        self._absent = {rank: set(answer["absent"]) for rank, answer in answers.items()}
        self._kept_objects = {number for answer in answers.values() for number in answer["objects"]}
        for name, refusal in self._graph.refused.items():
            if any(name in absent for absent in self._absent.values()):
                raise CannotSend(refusal)
        self._kept_names = own & self._graph.tokens.keys()
        self._keep_what_belongs_together()
        return self._tell()

    def pack(self, rank: int, directory: Path | None) -> dict[str, Any] | None:
        """What this rank is to take; None when it is nothing. directory: where the rank can read files."""
        key = (self._known[rank], self._absent.get(rank, set()) & self._kept_names)
        found = next((pack for pack in self._packs if pack.for_whom == key), None)
        if found is None:
            found = self._pack(*key, directory)
            self._packs.append(found)
        self._packed[rank] = found
        return found.message

    def taken(self, rank: int) -> None:
        """The rank has taken what was packed for it."""
        pack, known = self._packed[rank], self._known[rank]
        known.names |= pack.news.names
        known.objects |= pack.news.objects
        for number in pack.gone:
            known.objects.pop(number, None)

    def close(self) -> None:
        """Everybody has taken what there was."""
        for pack in self._packs:
            if pack.message is not None:
                pack.message["parcel"].remove()

    def _keep_what_belongs_together(self) -> None:
        """A name whose value has new objects in common with that of one that is kept stays behind with it."""
        graph = self._graph
        everywhere = set.intersection(*(set(known.objects) for known in self._known))
        new = {number for number, value in graph.objects.items() if not isinstance(value, type)} - everywhere
        more = self._kept_names
        while more:
            self._kept_names = self._kept_names | more
            kept = graph.reach(self._kept_names) & new
            free = graph.tokens.keys() - self._kept_names - self._push
            more = {name for name in free if graph.reach([name]) & kept}

    def _tell(self) -> list[str]:
        """A sentence on what is kept, unless it has been told of these very values before."""
        graph = self._graph
        inside = {(number, graph.digests[number]) for number in self._kept_objects}
        news = {(name, graph.tokens[name]) for name in self._kept_names} | inside
        news -= self._told
        self._told |= news
        names = sorted(
            name
            for name in graph.tokens
            if name in self._kept_names or graph.reach([name]) & self._kept_objects
        )
        if not news or not names:
            return self._tell_of_results()
        return [
            *self._tell_of_results(),
            f"{', '.join(names)}: the ranks have values of their own, other than the notebook's, and keep "
            f"them; `%%ranks --push {','.join(names)}` sends the notebook's",
        ]

    def _tell_of_results(self) -> list[str]:
        """A sentence on tensors that arrive without what they were computed from, once for each."""
        tensors, graph = tensor_module(), self._graph
        results = {n for n, value in graph.objects.items() if tensors and tensors.is_result(value)}
        news = {("result", number) for number in results} - self._told
        self._told |= news
        names = sorted(name for name in graph.tokens if graph.reach([name]) & results)
        if not news or not names:
            return []
        return [
            f"{', '.join(names)}: what it was computed from stays in the notebook, so a backward() on the "
            "ranks ends there; compute it in a cell on the ranks"
        ]

    def _pack(self, known: Known, absent: set[str], directory: Path | None) -> _Pack:
        graph = self._graph
        names = (graph.tokens.keys() - self._kept_names) | absent
        objects, bound, always = graph.reach(names), known.names, self._push | absent
        news = Known(
            {number: graph.digests[number] for number in objects if self._is_news(number, known)},
            {n: graph.tokens[n] for n in names if n in always or bound.get(n) != graph.tokens[n]},
        )
        living = graph.numbers.living()
        pack = _Pack(
            (Known({**known.objects}, {**known.names}), absent),
            news,
            [number for number in known.objects if number not in living],
        )
        if news.objects or news.names or pack.gone:
            pack.message = {"gone": pack.gone, **_pickled(graph, known, news, directory)}
        return pack

    def _is_news(self, number: int, known: Known) -> bool:
        if number not in known.objects or number in self._pushed:
            return True
        return known.objects[number] != self._graph.digests[number] and number not in self._kept_objects


def _pickled(graph: Graph, known: Known, news: Known, directory: Path | None) -> dict[str, Any]:
    """Names and objects in one pickle. Lists, dicts and sets come apart: they are made empty beforehand."""
    objects = {number: graph.objects[number] for number in news.objects}
    containers = {number: value for number, value in objects.items() if type(value) in CONTAINERS}
    for number in containers:
        del objects[number]

    def link(value: Any) -> int | None:
        number = graph.numbers.number(value)
        return number if number not in objects and (number in known.objects or number in containers) else None

    def there(value: Any) -> int | None:
        number = graph.numbers.number(value)
        return number if number in known.objects else None

    file = io.BytesIO()
    names = {name: graph.notebook[name] for name in news.names}
    contents = {
        number: list(value.items() if isinstance(value, dict) else value)
        for number, value in containers.items()
    }
    buffers: list[PickleBuffer] = []

    def apart(buffer: PickleBuffer) -> bool:
        large = buffer.raw().nbytes >= SMALLEST
        if large:
            buffers.append(buffer)
        return not large

    SharedPickler(file, graph.notebook, link, there, apart).dump((names, contents, objects))
    tensors = tensor_module()
    return {
        "containers": {number: type(value).__name__ for number, value in containers.items()},
        "digests": {
            n: news.objects[n] for n, value in objects.items() if tensors and tensors.is_storage(value)
        },
        "data": file.getvalue(),
        "parcel": parcel(buffers, directory),
    }


class Sender:
    """Remembers what each rank of a session has taken."""

    def __init__(self, ranks: int) -> None:
        self._known = [Known() for _ in range(ranks)]
        self._objects = NotebookObjects()
        self._told: set[Any] = set()

    def offer(self, names: Iterable[str], notebook: Mapping[str, Any], push: Collection[str] = ()) -> Offer:
        """What a cell that needs these names may bring along. push: in any case, and of any size."""
        wrong = [name for name in push if not travels(name, notebook)]
        if wrong:
            raise ValueError(
                f"{wrong[0]} cannot be pushed: the notebook has no such name, or the ranks keep it"
            )
        self._objects.look_at(notebook)
        graph = Graph(self._objects, notebook)
        graph.include(push, float("inf"))
        graph.include(names, LARGEST)
        self._include_what_shares(graph)
        return Offer(graph, self._known, self._told, push)

    def remember(self, values: Mapping[str, Any]) -> None:
        """Lists, dicts and sets of these keep their identity, though the notebook may not name them."""
        self._objects.pushed.update(values)

    def lost(self, rank: int, names: Iterable[str], objects: Iterable[int]) -> None:
        """The rank has deleted these."""
        for name in names:
            self._known[rank].names.pop(name, None)
        for number in objects:
            self._known[rank].objects.pop(number, None)

    def _include_what_shares(self, graph: Graph) -> None:
        """Names that ranks have, bound anew in the notebook to what shares new objects with what is sent."""
        new = {number for number in graph.objects if any(number not in k.objects for k in self._known)}
        there = {name for known in self._known for name in known.names} - graph.tokens.keys()
        for name in sorted(there) if new else ():
            beside = Graph(self._objects, graph.notebook)
            beside.include([name], LARGEST)
            if beside.tokens.keys() == {name} and beside.reach([name]) & new:
                graph.include([name], LARGEST)
