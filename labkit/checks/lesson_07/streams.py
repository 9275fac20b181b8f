"""What `07.random-streams` must show: what ranks draw alike, what they draw apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import JSON, Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_07.many_ranks import apart_in_a_large_group, draw_in_a_large_group
from labkit.checks.lesson_07.modules import PAIRS, WITHOUT_GROUP, case_maker
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.beside import calls_are
from labkit.checks.shared.places import enter_group, place_of

STREAMS_ID = "07.random-streams"
NUMBERS = 16
TURNS = 200
AT_ONCE = 10_000  # numbers
BY_CHANCE = 2  # of 64 numbers of two streams, each one of 2^24; three alike in 10^11 pairs of streams
OUTSIDE = {
    "made": "once the streams were made",
    "left": "after a few draws from them",
    "entered later": "after own() was called, and entered some draws later",
    "left by an error in shared": "after an exception inside shared()",
    "left by an error in own": "after an exception inside own()",
}
APART = (1, 2**16)  # seeds: whoever moves them out of the 32 bits that torch looks at has the same again
streams_case = case_maker(stream_seed=3)


def _cases(seed: int) -> list[Case]:
    return [
        streams_case("two ranks", "values", 2, seed),
        streams_case("four ranks", "values", 4, seed),
        streams_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


def _draw_in_turns(rank: Rank) -> None:
    """Draw from both streams in turns, and from torch's own generator, elsewhere on every rank, in between.

    Recording: all. Answers: NAME for each draw; "alone" and a time for what torch's generator gives without
    streams, the time itself for what it gave beside them.

    The same seed is given a second time where torch's own generator has another one, and texts have other
    hashes, as in another process.
    """
    group = enter_group(rank)
    if rank.case.kind == "subgroup":
        _draw_as_in_the_world(rank)
    seed_generators(100 + rank.rank)
    for time in OUTSIDE:
        rank.answer(f"alone {time}", _draw(rank))
    with rank.recording("all"):
        _draw_from_streams(rank, group)
    if rank.case.kind == "values":
        draw_in_a_large_group(rank)


def _draw_as_in_the_world(rank: Rank) -> None:
    """From streams of the same seed in the group of all ranks, in which ranks have other numbers."""
    streams = rank.student.RandomStreams(rank.params["stream_seed"], dist.group.WORLD)
    for stream in ("own", "shared"):
        with getattr(streams, stream)():
            _draw(rank)


def _draw_from_streams(rank: Rank, group: dist.ProcessGroup) -> None:
    seed_generators(900)
    with _hashes_of_another_process(rank.student):
        again = rank.student.RandomStreams(rank.params["stream_seed"], group)
    seed_generators(100 + rank.rank)
    streams = rank.student.RandomStreams(rank.params["stream_seed"], group)
    others = [rank.student.RandomStreams(rank.params["stream_seed"] + apart, group) for apart in APART]
    rank.answer("made", _draw(rank))
    order = ["shared", "own", "own", "shared"] if rank.rank % 2 else ["own", "shared", "shared", "own"]
    for number, stream in enumerate(order):
        with getattr(streams, stream)():
            rank.answer(f"{stream} {order[: number + 1].count(stream)}", _draw(rank))
    for stream in ("shared", "own"):
        for apart, other in zip(APART, others, strict=True):
            with getattr(other, stream)():
                rank.answer(f"{stream} of a seed {apart} apart", _draw(rank))
        with getattr(again, stream)():
            rank.answer(f"{stream} of the same seed", _draw(rank))
    ahead = streams.own()
    rank.answer("left", _draw(rank))
    with ahead:
        _draw(rank)
    rank.answer("entered later", _draw(rank))
    kept: list[JSON] = []
    for name in ("shared", "own"):
        stream = getattr(streams, name)
        for error in ERRORS:
            with contextlib.suppress(error):
                with stream():
                    rank.answer(f"{name} before {error.__name__}", _draw(rank))
                    raise error
                kept.append(f"{error.__name__} in {name}()")
            if error is not ERRORS[-1]:
                with stream():
                    rank.answer(f"{name} after {error.__name__}", _draw(rank))
        rank.answer(f"left by an error in {name}", _draw(rank))
        with stream():
            rank.answer(f"{name} after {ERRORS[-1].__name__}", _draw(rank))
    rank.fact("kept", kept)
    late = rank.student.RandomStreams(rank.params["stream_seed"], group)
    for stream in ("shared", "own"):
        with getattr(late, stream)():
            rank.answer(f"{stream} made late", _draw(rank))
    _draw_for_long(rank, rank.student.RandomStreams(rank.params["stream_seed"], group))


def _draw_for_long(rank: Rank, streams: Any) -> None:
    """As the layers of many steps do, and as one large layer does. Answers: NAME in turns, NAME at once."""
    turns = dict[str, list[Tensor]](shared=[], own=[])
    for _ in range(TURNS):
        for name, drawn in turns.items():
            with getattr(streams, name)():
                drawn.append(_draw(rank))
    for name, drawn in turns.items():
        rank.answer(f"{name} in turns", torch.stack(drawn))
        with getattr(streams, name)():
            rank.answer(f"{name} at once", torch.rand(AT_ONCE, device=rank.device))


@contextlib.contextmanager
def _hashes_of_another_process(student: ModuleType) -> Iterator[None]:
    """Inside, the student's code finds a `hash` that gives other numbers for what Python salts, or tells by
    its place in memory, and the same for numbers.
    """
    if hasattr(student, "hash"):  # a function of theirs
        yield
        return
    student.hash = _salted  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del student.hash


def _salted(value: object) -> int:
    match value:
        case int() | float() | complex():
            return hash(value)
        case tuple():
            return hash(tuple(map(_salted, value)))
        case _:
            return hash(("another process", value))


class _Planned(BaseException):
    """Raised inside a stream on purpose. No Exception, as what interrupts a cell is none."""


ERRORS = ArithmeticError, RuntimeError, KeyboardInterrupt, SystemExit, _Planned


def _draw(rank: Rank) -> Tensor:
    return torch.rand(NUMBERS, device=rank.device)


# -- judges


def _shared_alike(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name in _draws(answer, "shared"):
            alike = _same(answer, evidence.answers[0], name)
            yield Finding(alike, f"{name}: what rank 0 draws", "something else", answer.rank)


def _own_apart(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        own = _numbers(answer, "own")
        for earlier in evidence.answers[: answer.rank]:
            both = len(own & _numbers(earlier, "own"))
            told = f"own: other numbers than rank {earlier.rank} draws, sooner or later"
            yield Finding(both <= BY_CHANCE, told, f"{both} of {len(own)} are the same", answer.rank)
        both = len(own & _numbers(answer, "shared"))
        told = "own: other numbers than the shared stream's, sooner or later"
        yield Finding(both <= BY_CHANCE, told, f"{both} of {len(own)} are the same", answer.rank)
        for earlier in evidence.answers[: answer.rank]:
            told = f"own: other numbers than rank {earlier.rank} draws, in {TURNS} turns and in a large layer"
            yield _apart(told, (answer, "own"), (earlier, "own"))
        told = f"own: other numbers than the shared stream's, in {TURNS} turns and in a large layer"
        yield _apart(told, (answer, "own"), (answer, "shared"))


def _apart(told: str, one: tuple[RankAnswer, str], other: tuple[RankAnswer, str]) -> Finding:
    """Whether two streams have no two numbers in common that follow one another."""
    both = torch.isin(_successions(*one), _successions(*other)).sum()
    return Finding(not both, told, f"{int(both)} numbers and what follows them are the same", one[0].rank)


def _successions(answer: RankAnswer, stream: str) -> Tensor:
    """Each number drawn for long with the one that follows it, as one whole number."""
    drawn = [*answer.tensors[f"{stream} in turns"], answer.tensors[f"{stream} at once"]]
    bits = [numbers.float().view(torch.int32).long() for numbers in drawn]
    return torch.cat([one[:-1] << 32 | one[1:] for one in bits])


def _go_on(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for stream in ("shared", "own"):
            again = _same_draw(answer, f"{stream} 1", f"{stream} 2")
            told = f"{stream}: goes on where it stopped"
            yield Finding(not again, told, "the same numbers again", answer.rank)
            same = _same_draw(answer, f"{stream} 1", f"{stream} of the same seed")
            yield Finding(same, f"{stream}: set by the seed alone", "other numbers", answer.rank)
            late = _same_draw(answer, f"{stream} 1", f"{stream} made late")
            told = f"{stream}: begins anew for the same seed, after draws from other streams of it"
            yield Finding(late, told, "other numbers", answer.rank)
            for apart in APART:
                other = _same_draw(answer, f"{stream} 1", f"{stream} of a seed {apart} apart")
                told = f"{stream}: other numbers for a seed {apart} apart"
                yield Finding(not other, told, "the same", answer.rank)
            for error in ERRORS:
                before, after = (f"{stream} {when} {error.__name__}" for when in ("before", "after"))
                told = f"{stream}: goes on after {error.__name__}"
                yield Finding(not _same_draw(answer, before, after), told, "the same again", answer.rank)
            turns = answer.tensors[f"{stream} in turns"]
            told, new = f"{stream}: other numbers in each of {TURNS} turns", len(turns.unique(dim=0))
            yield Finding(new == TURNS, told, f"{new} different draws", answer.rank)


def _torchs_own_unmoved(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        for time, when in OUTSIDE.items():
            told = f"from torch's own generator, {when}, what it gives without streams"
            yield Finding(_same_draw(answer, time, f"alone {time}"), told, "other numbers", answer.rank)
        kept = ", ".join(answer.facts["kept"])
        yield Finding(not kept, "an exception leaves the block", f"kept: {kept}", answer.rank)


def _sends_nothing(evidence: Evidence) -> Iterator[Finding]:
    return (calls_are("all", [], answer) for answer in evidence.answers)


def _by_group(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        first = evidence.answers[place_of(evidence.case, answer.rank).members[0]]
        for name in _draws(answer, "shared"):
            told = f"{name}: the shared stream of the group's ranks alike"
            seen = "another draw than the group's first rank"
            yield Finding(_same(answer, first, name), told, seen, answer.rank)
        for name in _draws(answer, "own"):
            lonely = answer.rank == first.rank or not _same(answer, first, name)
            yield Finding(lonely, f"{name}: streams of their own", "the first rank's draw", answer.rank)
    for answer, other in _alike_in_their_groups(evidence):
        for name in _draws(answer, "own"):
            told = f"{name}: what rank {other.rank} draws, which has the same number in its group"
            yield Finding(_same(answer, other, name), told, "something else", answer.rank)


def _alike_in_their_groups(evidence: Evidence) -> Iterator[tuple[RankAnswer, RankAnswer]]:
    """Pairs of ranks with one number in groups of their own."""
    for answer in evidence.answers:
        place = place_of(evidence.case, answer.rank)
        for other in evidence.answers[: answer.rank]:
            there = place_of(evidence.case, other.rank)
            if place.index != there.index and place.position == there.position:
                yield answer, other


def _numbers(answer: RankAnswer, stream: str) -> set[float]:
    """All that a rank was seen to draw from one of its streams."""
    times = "1", "2", *(f"{when} {ERRORS[0].__name__}" for when in ("before", "after"))
    return {number for time in times for number in answer.tensors[f"{stream} {time}"].tolist()}


def _draws(answer: RankAnswer, stream: str) -> list[str]:
    """The names of all that a rank drew inside a stream, from the first draw to those of many turns."""
    return [name for name in answer.tensors if name.startswith(f"{stream} ")]


def _same(answer: RankAnswer, other: RankAnswer, name: str) -> bool:
    return torch.equal(answer.tensors[name], other.tensors[name])


def _same_draw(answer: RankAnswer, one: str, two: str) -> bool:
    return torch.equal(answer.tensors[one], answer.tensors[two])


EXERCISE = Exercise(
    STREAMS_ID,
    "Two streams of random numbers",
    ("RandomStreams",),
    {"values": Run(_draw_in_turns), "subgroup": Run(_draw_in_turns)},
    _cases,
    (
        Property(
            "shared-stream",
            "mechanism",
            2,
            "Inside shared() all ranks draw the same; nothing is sent for it.",
            "its seed depends on the rank",
            {"values": every(_shared_alike, _sends_nothing)},
            {"subgroup": _sends_nothing},
        ),
        Property(
            "own-streams",
            "mechanism",
            2,
            "Inside own() each rank draws numbers of its own.",
            "one seed for all ranks",
            {"values": every(_own_apart, apart_in_a_large_group)},
        ),
        Property(
            "streams-go-on",
            "mechanism",
            2,
            "Each stream goes on where it stopped, and is set by the seed alone.",
            "the state was not kept on leaving, so that every layer would drop the same places",
            {"values": _go_on},
            {"subgroup": _go_on},
        ),
        Property(
            "others-unmoved",
            "robustness",
            1,
            "Torch's own generator is left as it was, after an exception too, which leaves the block.",
            "try/finally; torch.manual_seed seeds the generator everybody uses",
            {"values": _torchs_own_unmoved},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "The ranks of a group share a stream, by their rank in it.",
            WITHOUT_GROUP,
            {"subgroup": _by_group},
        ),
    ),
)
