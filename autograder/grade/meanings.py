"""What the names of a submission stand for, as far as its imports and assignments tell."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autograder.grade.clues import Clue
from autograder.grade.identity import exported, module_of

MOST_MEANINGS = 20  # that one name has in a submission
Names = Mapping[str, Sequence[str]]  # what each name may stand for


def meanings_of(imported: Names, renamed: Names) -> tuple[dict[str, list[str]], list[str]]:
    """What each name stands for, with those that modules were assigned to (`m = torch.nn.functional` is as an
    import of it), and those that a module gives all its names to; and which names stand for too much.
    """
    found: dict[str, list[str]] = {}
    crowded: dict[str, None] = {}
    after: dict[str, list[tuple[str, str]]] = {}  # by its first name: a chain's rest, and who is given it
    for name, chains in renamed.items():
        for first, _, rest in (chain.partition(".") for chain in chains):
            after.setdefault(first, []).append((rest, name))
    left = [(name, full) for name, fulls in imported.items() for full in fulls]
    left += [(name, f"{home}.{name}") for home in given_whole(imported) for name in exported(home)]
    left += [("builtins", "builtins")] if "builtins" not in imported else []
    while left:
        name, full = left.pop()
        known = found.setdefault(name, [])
        if full in known:
            continue
        if len(known) == MOST_MEANINGS and name != "*":
            crowded[name] = None
            continue
        known.append(full)
        for rest, given in after.get(name, []):
            if module := module_of(f"{full}.{rest}" if rest else full):
                left.append((given, module))
    return found, [*crowded]


def given_whole(imported: Names) -> list[str]:
    """The modules of which all names are imported."""
    return [full.removesuffix(".*") for full in imported.get("*", []) if full.endswith(".*")]


def stand_for(renamed: Names, imported: Names) -> dict[str, list[str]]:
    """The full names of what is assigned to each name, as far as imports tell."""
    fulls = {
        n: list(dict.fromkeys(f for c in chains for f in full_names_of(c, imported)))
        for n, chains in renamed.items()
    }
    return {name: found[:MOST_MEANINGS] for name, found in fulls.items()}


@dataclass(frozen=True)
class Meanings:
    """What the names of a submission stand for. imported: by imports, and by what modules are assigned to;
    stands_for: the full names of what is assigned to names; never_else: those of `imported` that nothing but
    imports binds, in any statement; bound: names that something else binds; classes: those of these that
    nothing but classes binds. sends_objects: as `scan` is told.
    """

    imported: Names
    stands_for: Names
    never_else: Names
    bound: set[str]
    classes: set[str]
    sends_objects: bool

    def number(self, clue: Clue) -> int:
        """How many full names a clue's may be."""
        first = clue.chain.partition(".")[0]
        return len(self.imported.get(first, ())) + len(self.stands_for.get(first, ()))

    def of(self, clue: Clue) -> Iterator[str]:
        """The full names that a clue's may be."""
        first, dot, rest = clue.chain.partition(".")
        yield from [clue.chain] if clue.use == "given" else full_names_of(clue.chain, self.imported)
        yield from (full + dot + rest for full in self.stands_for.get(first, ()))

    def is_a_class(self, chain: str) -> bool:
        """Whether a name stands for a class, for all that is known: no text of the student's."""
        first = chain.partition(".")[0]
        own = first in self.classes and first == chain
        return first in self.never_else or own or (first not in self.bound and hasattr(builtins, first))


def full_names_of(chain: str, imported: Names) -> list[str]:
    """The full names that a chain such as dist.ProcessGroup may stand for; none when its first is no
    import.
    """
    first, dot, rest = chain.partition(".")
    return [full + dot + rest for full in imported.get(first, ["builtins"] if first == "builtins" else [])]


def merged(tables: Iterable[Names]) -> Names:
    """All that each name stands for, in any of the tables."""
    found: dict[str, list[str]] = {}
    for name, full in (item for table in tables for item in table.items()):
        found[name] = list(dict.fromkeys([*found.get(name, []), *full]))
    return found
