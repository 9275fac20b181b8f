"""Reads a student's source for what no exercise needs: reaching for frames, the recorder, or torch's own
functions.

A finding is a flag for a person, with the line. It takes no points by itself: a flag is a suspicion, a
failed property is evidence. The exception is an exercise's `forbids`, which is also enforced when the code
runs.

A cell is parsed where it is read, within limits; what is found there are clues (`autograder.grade.clues`).
Which of them are flags for an exercise is decided here, from the words alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autograder.grade.clues import PARTLY, CellClues, Clue, clues_of, import_told, is_inner
from autograder.grade.identity import exported, full_names, module_of, reached_otherwise, watched_function
from autograder.grade.watched_names import (
    ANYWHERE,
    ATTRIBUTES,
    CLASSES,
    HARMLESS,
    HARMLESS_CALLS,
    HAS_ALL_NAMES,
    INTERPRETER,
    LEADS_ANYWHERE,
    MODULES,
    PLAIN,
    PRIVATE_BUT_USUAL,
    PUBLIC,
    RUN_TEXT,
    RUNS_DATA,
    UNPICKLE_BY_PLACE,
)
from labkit.checks.source.submission import Submission
from labkit.checks.source.text import python_lines


@dataclass(frozen=True)
class Flag:
    """Something a person should look at. `line` is the student's own text."""

    why: str
    cell: str = ""
    line_number: int = 0
    line: str = ""
    holds: bool = False  # with this a record can be forged: what rests on one waits for a person
    holds_all: bool = False  # with this the checks can be had to answer for themselves: all points wait

    def __str__(self) -> str:
        where = f"{self.cell}, line {self.line_number}: {self.line}" if self.cell else ""
        return f"{self.why}" + (f" ({where})" if where else "")


_WORD = re.compile(r"\w+")
MOST_MEANINGS = 20  # that one name has in a submission
MOST_FLAGS = 100  # that a person is shown of one submission; what more there are is counted
IN_NUMBERS = "looks something up by a name, beside texts that are made of numbers"
LAYERS = "torch.nn.modules"  # torch's own package of them, as in `nn.modules.batchnorm._BatchNorm`
_CROWDED = f"has {{}} stand for more than {MOST_MEANINGS} things"
Names = Mapping[str, Sequence[str]]  # what each name may stand for


def scan(
    submission: Submission, forbids: Sequence[str] = (), known: Mapping[str, CellClues] | None = None
) -> list[Flag]:
    """Flags for the student's statements an exercise would run.

    forbids: dotted names that solve it outright. known: clues by cell, where they have been found already.
    """
    cells = dict(known or {})
    cells |= {label: clues_of(text) for label, text in submission.sources.items() if label not in cells}
    clues = {s: cells[s.cell][s.index] for s in (*submission.statements, *submission.additions)}
    renamed = _merged(each.renamed for each in clues.values())
    imported, crowded = _meanings(_merged(each.imported for each in clues.values()), renamed)
    stands_for = _stand_for(renamed, imported)
    bound = {name for each in clues.values() for name in each.bound}
    never_else = {} if "*" in imported else {n: full for n, full in imported.items() if n not in bound}
    flags = [Flag(_CROWDED.format(name[:60]), holds=True, holds_all=True) for name in crowded]
    flags += _told_of_all(imported, " ".join(submission.sources.values()))
    uses = {clue.use for found in clues.values() for clue in found.found}
    in_numbers = {"looked_up", "spelled"} <= uses
    texts = {label: python_lines(text) for label, text in submission.sources.items()}
    for statement, found in clues.items():
        lines = texts[statement.cell]
        for clue in found.found:
            reasons = _reasons(clue, imported, never_else, stands_for, forbids)
            if clue.use in ("looked_up", "spelled"):
                reasons = iter([IN_NUMBERS] if in_numbers else [])
            for why in reasons:
                text = lines[clue.line - 1].strip()[:200] if 0 < clue.line <= len(lines) else ""
                flags.append(Flag(why, statement.cell, clue.line, text, _can_forge(why), _finds_checks(why)))
    return _at_most(MOST_FLAGS, list(dict.fromkeys(flags)))


def _at_most(most: int, flags: list[Flag]) -> list[Flag]:
    """The first of these flags, one of each kind before others; the last says how many are left out, and
    holds what these hold.
    """
    if len(flags) <= most:
        return flags
    first = {flag.why: flag for flag in reversed(flags)}.values()
    by_worth = sorted(first, key=lambda flag: (not flag.holds_all, not flag.holds))
    shown = {*[*dict.fromkeys([*by_worth, *flags])][: most - 1]}
    left = [flag for flag in flags if flag not in shown]
    told = f"there are {len(left)} more places to look at"
    more = Flag(told, holds=any(f.holds for f in left), holds_all=any(f.holds_all for f in left))
    return [*(flag for flag in flags if flag in shown), more]


def _meanings(imported: Names, renamed: Names) -> tuple[dict[str, list[str]], list[str]]:
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
    left += [(name, f"{home}.{name}") for home in _given_whole(imported) for name in exported(home)]
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


def _given_whole(imported: Names) -> list[str]:
    """The modules of which all names are imported."""
    return [full.removesuffix(".*") for full in imported.get("*", []) if full.endswith(".*")]


def _told_of_all(imported: Names, text: str) -> Iterator[Flag]:
    """Flags for names that `from module import *` brings and the text has: as if they were imported alone."""
    words = set(_WORD.findall(text))
    for home in _given_whole(imported):
        for name in sorted(words.intersection(exported(home))):
            why = import_told(f"{home}.{name}")
            if name in ATTRIBUTES or why:
                why = f"{why or f'reaches for {name}'}, with all of {home}"
                yield Flag(why, holds=_can_forge(why), holds_all=name in LEADS_ANYWHERE or _finds_checks(why))


def _stand_for(renamed: Names, imported: Names) -> dict[str, list[str]]:
    """The full names of what is assigned to each name, as far as imports tell."""
    fulls = {
        n: list(dict.fromkeys(f for c in chains for f in _full(c, imported))) for n, chains in renamed.items()
    }
    return {name: found[:MOST_MEANINGS] for name, found in fulls.items()}


def _reasons(
    clue: Clue, imported: Names, never_else: Names, stands_for: Names, forbids: Sequence[str]
) -> Iterator[str]:
    """Why a clue is a flag, with what these names stand for. never_else: those that nothing but imports
    binds, in any statement. stands_for: the full names of what is assigned to names.
    """
    if clue.why:
        yield clue.why
        return
    if clue.use == "modules":
        if set(_full(clue.chain, never_else)) != {LAYERS}:
            yield "reaches for modules"
        return
    if clue.chain in HAS_ALL_NAMES:
        modules = PARTLY.intersection(full for names in imported.values() for full in names)
        yield from (
            f"reaches for {clue.chain}, which has {name} ({MODULES[name]})" for name in sorted(modules)
        )
    for written in [clue.chain] if clue.use == "given" else _full(clue.chain, imported):
        yield from _by_identity(written)
        for dotted in full_names(written):
            yield from _about(dotted, clue.use, forbids)
    first, dot, rest = clue.chain.partition(".")
    for dotted in stands_for.get(first, []):
        if clue.use == "unnamed":
            yield from _about(dotted + dot + rest, clue.use, forbids)
        if dotted in CLASSES and clue.use in ("base", "set", "patched"):
            yield from _about(dotted + dot + rest, clue.use, forbids)


def _by_identity(dotted: str) -> Iterator[str]:
    """What a full name stands for, or leads through, that has another name where it is at home."""
    for own, written in reached_otherwise(dotted):
        if why := import_told(own):
            yield f"reaches for {written}: {why.replace('imports', 'it is', 1)}"
    if own := watched_function(dotted):
        home, _, name = own.rpartition(".")
        why = MODULES.get(own) or MODULES.get(home) or MODULES.get(home.partition(".")[0]) or RUNS_DATA
        if name in HARMLESS_CALLS:
            why = "works on files" if name == "open" else "asks a person"
        yield f"reaches for {dotted}: it is {own} ({why})"


def _about(dotted: str, use: str, forbids: Sequence[str]) -> Iterator[str]:
    """Why the use of a full name is a flag."""
    if use == "handed":
        if module_of(dotted) or dotted in UNPICKLE_BY_PLACE:
            yield f"hands on {dotted}, which gets another name"
        return
    if use == "unnamed":
        if dotted in UNPICKLE_BY_PLACE:
            yield "runs code from data: reads what was pickled"
        return
    if use != "given" and (watched := _of_a_module_used_in_part(dotted)):
        yield watched
    if dotted in forbids and use not in ("patched", "made"):
        yield f"uses {dotted}, forbidden here"
    if use != "given" and (way := _on_the_way(dotted)):
        yield way
    elif _is_private(dotted):
        yield f"reaches for {dotted}, which {dotted.partition('.')[0]} keeps to itself"
    if beneath := next((name for name in forbids if _is_beneath(dotted, name)), ""):
        yield f"uses {dotted}, which is beneath {beneath}, forbidden here"
    if use == "made" or dotted.endswith(".__dict__"):
        yield f"reaches into {dotted.removesuffix('.__dict__')} by a name that is made"
    if use == "base" and dotted in ("torch.Tensor", "torch.nn.Parameter"):
        yield f"makes a kind of {dotted} of its own"
    if use == "set":
        yield f"replaces {dotted}"
    if use == "patched":
        yield f"replaces something in {dotted}"


def _on_the_way(dotted: str) -> str:
    """What a full name leads through that no exercise needs: `torch.sys.path`, `labkit.record.current`."""
    parts = dotted.split(".")
    for length in range(2, len(parts) + 1):
        name = ".".join(parts[:length])
        plain = parts[length - 1].lstrip("_")  # `collections._sys` is sys as well
        inner = MODULES.get(plain) if plain in INTERPRETER else None
        if name != PUBLIC and (why := MODULES.get(name) or inner):
            return f"reaches for {name} ({why})"
        if is_inner(name):
            return f"reaches for {name}, which no exercise needs"
    return ""


def _is_beneath(dotted: str, forbidden: str) -> bool:
    """Whether a name is of what a forbidden function is made of: its module's own, or torch's operators."""
    module, _, name = forbidden.rpartition(".")
    operator = dotted.startswith("torch.ops.") and name.removesuffix("_attention") in dotted
    return operator or dotted.startswith(f"{module}._")


def _of_a_module_used_in_part(dotted: str) -> str:
    """What is told of a module whose import alone is not: that it is used as a whole, or in another part."""
    module, *parts = dotted.split(".")
    if module not in PARTLY or ".".join([module, *parts[:1]]) in PLAIN:
        return ""
    return f"reaches for {dotted} ({MODULES[module]})"


def _can_forge(why: str) -> bool:
    """Whether what was found can lead to the recorder, or to what is replaced to fool it."""
    return not any(harmless in why for harmless in HARMLESS)


def _finds_checks(why: str) -> bool:
    """Whether what was found is, or can lead to, the checks with their own answers: it runs a text or data,
    walks frames, or reaches any module that is loaded.
    """
    verb, _, name = why.partition(" ")
    if verb == "reaches":
        name = name.removeprefix("for ").partition(",")[0]
    named = (verb in ("reaches", "defines") and name in LEADS_ANYWHERE) or (
        verb == "calls" and name in RUN_TEXT
    )
    return named or why == IN_NUMBERS or any(way in why for way in ANYWHERE)


def _is_private(name: str) -> bool:
    """Whether a full name leads through what a library keeps to itself."""
    return any(p.startswith("_") and not PRIVATE_BUT_USUAL.fullmatch(p) for p in name.split(".")[1:])


def _full(chain: str, imported: Names) -> list[str]:
    """The full names that a chain such as dist.ProcessGroup may stand for; none when its first is no
    import.
    """
    first, dot, rest = chain.partition(".")
    return [full + dot + rest for full in imported.get(first, ["builtins"] if first == "builtins" else [])]


def _merged(tables: Iterable[Names]) -> Names:
    """All that each name stands for, in any of the tables."""
    found: dict[str, list[str]] = {}
    for name, full in (item for table in tables for item in table.items()):
        found[name] = list(dict.fromkeys([*found.get(name, []), *full]))
    return found
