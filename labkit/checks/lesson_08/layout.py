"""`08.flat-layout`: who owns which slice of which parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, every
from labkit.checks.lesson_08.formulas import GIVEN, HIDES
from labkit.checks.lesson_08.settings import (
    ANY_SEQUENCE,
    Setting,
    asks,
    each,
    each_is_refused,
    is_whole,
    refuses,
    settings_case,
    sizes_in_words,
)
from labkit.theory import sharding  # an empty file where this lesson is graded: judges alone call it

LONGEST = 400  # letters of what was found


def _flat_layout(student: Any, setting: Setting) -> object:
    numels, world_size = setting
    return student.flat_layout(numels, world_size)


def _shard_size(setting: Setting, seen: Any) -> Iterator[Finding]:
    size, _ = sharding.pieces_of_ranks(*setting)
    found = seen[0] if isinstance(seen, list) and len(seen) == 2 else seen
    yield Finding(found == size, f"shards of {size} for {_in_words(setting)}", _shortened(found))


def _owned(setting: Setting, seen: Any) -> Iterator[Finding]:
    numels, world_size = setting
    _, pieces = sharding.pieces_of_ranks(numels, world_size)
    found = seen[1] if isinstance(seen, list) and len(seen) == 2 else seen
    about = _in_words(setting)
    if not isinstance(found, list) or len(found) != world_size:
        yield Finding(False, f"a list of pieces for each of the ranks, for {about}", _shortened(found))
        return
    for rank, (own, has) in enumerate(zip(pieces, found, strict=True)):
        told = f"rank {rank}: {_shortened(own)} for {about}"
        yield Finding(has == [list(piece) for piece in own], told, _shortened(has))


def _whole(setting: Setting, seen: Any) -> Iterator[Finding]:
    """All that tells places is an int."""
    told = f"ints, with which a tensor can be sliced, for {_in_words(setting)}"
    others = [number for number in _numbers_in(seen) if not is_whole(number)]
    yield Finding(not others, told, f"{others[0]!r}, a {type(others[0]).__name__}" if others else "")


def _numbers_in(seen: Any) -> Iterator[Any]:
    if isinstance(seen, list):
        for part in seen:
            yield from _numbers_in(part)
    else:
        yield seen


def _in_words(setting: Setting) -> str:
    numels, world_size = setting
    return f"{sizes_in_words(numels)} on {world_size} ranks"


def _shortened(found: object) -> str:
    text = str(found)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def _numels_stay(evidence: Evidence) -> Iterator[Finding]:
    changed = evidence.answers[0].facts["changed"]
    yield Finding(not changed, "numels as they were handed over", "they were changed" if changed else "")


FLAT_LAYOUT = Exercise(
    "08.flat-layout",
    "Who owns which slice of which parameter",
    ("flat_layout",),
    dict.fromkeys(("plain", "few", "empty", ANY_SEQUENCE), asks(_flat_layout))
    | {"refused": refuses(_flat_layout)},
    lambda seed: flat_layout_cases(seed, "", [12, 4, 30, 1, 3], [640, 25, 2048, 3, 1111]),
    (
        Property(
            "shard-size",
            "numbers",
            1,
            "A shard has ceil(N / d) elements.",
            "N // d, which loses the last elements",
            {"plain": each(_shard_size), "few": each(_shard_size)},
        ),
        Property(
            "pieces",
            "numbers",
            3,
            "Every element belongs to the rank its place in the flat tensor says, in order, and numels stays"
            " as it is, whatever sequence it is; places are ints.",
            "a parameter that spans three shards, or offsets that count parameters",
            {"plain": every(each(_owned), each(_whole), _numels_stay), ANY_SEQUENCE: each(_owned)},
        ),
        Property(
            "fewer-elements-than-ranks",
            "robustness",
            1,
            "Ranks that have padding only own nothing.",
            "empty pieces in the list, or fewer lists than ranks",
            {"few": each(_owned)},
        ),
        Property(
            "empty-parameters",
            "robustness",
            1,
            "A parameter without elements is in no piece; no elements at all are no error: shards of 0.",
            "a division by a shard size of 0",
            {"empty": every(each(_shard_size), each(_owned))},
        ),
        Property(
            "refused",
            "robustness",
            1,
            "No rank is refused with a ValueError.",
            "a ZeroDivisionError, or Python's modulo that takes a negative number of ranks",
            {"refused": each_is_refused(_in_words)},
        ),
    ),
    forbids=GIVEN,
    hides=HIDES,
)


def flat_layout_cases(seed: int, prefix: str, numels: list[int], many: list[int]) -> list[Case]:
    """numels: parameters of sizes that differ widely; many: of so many elements that each of 61 ranks has
    some.
    """
    plain = [[units, d] for units in (numels, numels[::-1], [5, 5, 5], [1] * 7) for d in (1, 2, 3, 4)]
    plain += [[many, d] for d in (3, 5, 6, 8, 11, 16, 61)]
    few = [[[1, 2], 5], [[1], 3], [[2, 2], 8], [[3, 2], 4]]
    empty = [[[0, 4, 0, 3, 0], 2], [[0, 0], 3], [[], 2], [[], 1], [[0], 7]]
    refused: tuple[list[int], ...] = (numels, [1], [0, 0, 0], [])
    return [
        settings_case(f"{prefix}parameters of many sizes", "plain", plain, seed),
        settings_case(f"{prefix}parameters in a tuple", ANY_SEQUENCE, [[numels, 3], [many, 4]], seed),
        settings_case(f"{prefix}fewer elements than ranks", "few", few, seed),
        settings_case(f"{prefix}parameters without elements", "empty", empty, seed),
        settings_case(f"{prefix}no rank", "refused", [[units, 0] for units in refused], seed),
        settings_case(
            f"{prefix}fewer ranks than none", "refused", [[u, d] for u in refused for d in (-1, -4)], seed
        ),
    ]
