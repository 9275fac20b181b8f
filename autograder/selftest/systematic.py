"""The systematic self-test: all single edits of the references, or a random sample of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from autograder.selftest import record
from autograder.selftest.kept import Kept, key_of
from autograder.selftest.progress import told_now_and_then
from autograder.selftest.survivors import excused
from autograder.selftest.variants import Fate, Tried, try_variants, variants

Show = Callable[[str], None]


def run_all(exercises: Sequence[str], jobs: int, show: Show) -> bool:
    """Try all variants of these exercises, except where nothing changed since, and write down what came of
    them. Whether each lost points or is excused, and every excuse is about one that does not.

    A run that is interrupted has kept what it did, and the next goes on from there.
    """
    kept, stale = Kept(), [name for name in exercises if not record.is_current(name)]
    for number, exercise in enumerate(stale, 1):
        doing = f"edits of {exercise}, {number} of {len(stale)} exercises"
        tried = told_now_and_then(all_tried(exercise, jobs, kept), len(variants(exercise)), doing, show)
        tally = record.keep(exercise, tried)
        show(f"{exercise}: {record.row(exercise, tally)}")
    tallies = {name: record.load(name)[name] for name in exercises}
    for line in record.table(tallies):
        show(line)
    wrong = [problem for name, tally in tallies.items() for problem in record.obsolete(name, tally)]
    for name, tally in tallies.items():
        wrong += [_told(name, *edit) for edit in record.unexplained(name, tally)]
    for problem in wrong:
        show(problem)
    return not wrong


def all_tried(exercise: str, jobs: int, kept: Kept) -> Iterator[Tried]:
    """What becomes of every variant of an exercise: of those tried before as it was then."""
    digest = record.digest_of(exercise)
    keys = {variant: key_of(digest, variant.edit.source) for variant in variants(exercise)}
    before = {variant: kept.get(key, tuple[Fate, str]) for variant, key in keys.items()}
    yield from (Tried(variant, *found) for variant, found in before.items() if found)
    left = [variant for variant, found in before.items() if not found]
    for each in try_variants(left, jobs) if left else ():
        kept.add(keys[each.variant], (each.fate, each.by))
        yield each


def run_sample(exercises: Sequence[str], count: int, seed: int, jobs: int, show: Show) -> bool:
    """Try `count` variants drawn from these exercises. Whether each lost points or is excused."""
    every = [variant for exercise in exercises for variant in variants(exercise)]
    drawn = random.Random(seed).sample(every, min(count, len(every)))
    tried = list(try_variants(drawn, jobs))
    alive = [each for each in tried if each.fate == "survived"]
    unexplained = [each for each in alive if not _is_excused(each)]
    for each in unexplained:
        edit = each.variant.edit
        show(_told(each.variant.exercise, edit.was, edit.becomes))
    show(
        f"{len(tried) - len(alive)} of {len(tried)} variants lost points (seed {seed}), "
        f"{len(alive) - len(unexplained)} are excused, {len(unexplained)} survived"
    )
    return not unexplained


def _is_excused(each: Tried) -> bool:
    edit = each.variant.edit
    return excused(each.variant.exercise).covers(each.variant.exercise, edit.was, edit.becomes)


def _told(exercise: str, was: str, becomes: str) -> str:
    return f"{exercise} keeps every point\n    was:     {was}\n    becomes: {becomes}"
