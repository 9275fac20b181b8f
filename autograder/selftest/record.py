"""What came of the variants of each exercise, kept so that only what changed is run again.

One file a lesson under `benchmarks/results/variants`. An exercise's entry holds for the digest of what
decides it: its own check, its cases, the reference as far as it is put in, and how edits are derived. That
of a grade counts the lesson's files as a whole; here a changed sentence would have thousands tried again.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from autograder.grade.reference import REPOSITORY, solved_cells
from autograder.selftest import edits
from autograder.selftest.needed_code import check_code, code_put_in
from autograder.selftest.survivors import excused
from autograder.selftest.variants import SEED, Tried, regions, variants
from labkit.checks import registry
from labkit.whole_file import write_whole

FOLDER = REPOSITORY / "benchmarks" / "results" / "variants"
COLUMNS = ("variants", "lost", "error", "hung", "excused", "survived")


class Tally(msgspec.Struct, frozen=True):
    """What came of one exercise. fates: operator -> lost, error, hung or survived -> how many.

    survived: the edits that lost nothing, excused or not, as the lines before and after.
    """

    digest: str
    date: str
    fates: dict[str, dict[str, int]]
    survived: list[tuple[str, str]]


def load(lesson: str) -> dict[str, Tally]:
    """Exercise -> what came of it when it was last run; empty where a lesson never was."""
    path = _path(lesson)
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Tally]) if path.exists() else {}


def keep(exercise: str, tried: Iterable[Tried]) -> Tally:
    """Write down what came of all variants of an exercise."""
    fates: dict[str, Counter[str]] = defaultdict(Counter)
    survived = []
    for each in tried:
        fates[each.variant.edit.operator][each.fate] += 1
        if each.fate == "survived":
            survived.append((each.variant.edit.was, each.variant.edit.becomes))
    by_operator = {operator: dict(sorted(counts.items())) for operator, counts in sorted(fates.items())}
    today = datetime.now(UTC).date().isoformat()
    tally = Tally(digest_of(exercise), today, by_operator, sorted(set(survived)))
    kept = dict(sorted({**load(exercise), exercise: tally}.items()))
    _path(exercise).parent.mkdir(parents=True, exist_ok=True)
    write_whole(_path(exercise), msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    return tally


def digest_of(exercise: str) -> str:
    """What the fate of an exercise's variants rests on."""
    solved = solved_cells(exercise[:2])
    edited = [region for cell in solved if cell.exercise == exercise for region in regions(cell)]
    derived = Path(edits.__file__).read_text(encoding="utf-8")
    put_in = code_put_in(registry.exercise(exercise), solved)
    parts = [*check_code(exercise, SEED), *put_in, *edited, derived]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def is_current(exercise: str) -> bool:
    """Whether what is written down of an exercise holds for it as it is now."""
    tally = load(exercise).get(exercise)
    return tally is not None and tally.digest == digest_of(exercise)


def row(exercise: str, tally: Tally) -> dict[str, int]:
    """The numbers of the kill table for one exercise."""
    total: Counter[str] = Counter()
    for counts in tally.fates.values():
        total.update(counts)
    open_ = len(unexplained(exercise, tally))
    return {
        **{name: total[name] for name in ("lost", "error", "hung")},
        "variants": total.total(),
        "excused": total["survived"] - open_,
        "survived": open_,
    }


def unexplained(exercise: str, tally: Tally) -> list[tuple[str, str]]:
    """Edits that lost nothing, and no sentence says why."""
    covers = excused(exercise).covers
    return [(was, becomes) for was, becomes in tally.survived if not covers(exercise, was, becomes)]


def obsolete(exercise: str, tally: Tally | None) -> list[str]:
    """Sentences about edits that do not exist, or that lose points after all."""
    there = {(v.edit.was, v.edit.becomes) for v in variants(exercise)}
    alive = there if tally is None else set(tally.survived)
    mine = [s for s in excused(exercise).survivors if s.exercise == exercise]
    return [
        f"{exercise}: {s.was!r} -> {s.becomes!r} "
        + ("loses points now" if (s.was, s.becomes) in there else "is no edit of the reference")
        for s in mine
        if (s.was, s.becomes) not in alive
    ]


def table(tallies: dict[str, Tally]) -> list[str]:
    """The kill table: a line an exercise, a line an operator, and the sum."""
    rows = {exercise: row(exercise, tally) for exercise, tally in tallies.items()}
    operators = _by_operator(tallies.values())
    total = {name: sum(r[name] for r in rows.values()) for name in COLUMNS}
    head = f"{'':<34}" + "".join(f"{name:>10}" for name in COLUMNS)
    return [
        head,
        *(_line(name, COLUMNS, r) for name, r in rows.items()),
        _line("all", COLUMNS, total),
        *(_line(name, COLUMNS[:4], counts) for name, counts in sorted(operators.items())),
    ]


def _by_operator(tallies: Iterable[Tally]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for tally in tallies:
        for operator, counts in tally.fates.items():
            found[operator].update(counts)
            found[operator]["variants"] += sum(counts.values())
    return found


def _line(name: str, columns: Sequence[str], counts: dict[str, int] | Counter[str]) -> str:
    return f"{name:<34}" + "".join(f"{counts.get(column, 0):>10}" for column in columns)


def _path(lesson: str) -> Path:
    return FOLDER / f"lesson_{lesson[:2]}.json"
