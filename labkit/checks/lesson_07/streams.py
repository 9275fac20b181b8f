"""The check of `RandomStreams`: what ranks draw alike, what they draw apart."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.sharded_evidence import finding

NUMBERS = 16
OUTSIDE = {
    "made": "once the streams were made",
    "left": "after a few draws from them",
    "left by an error": "after an exception inside one",
}


def streams_on_rank(rank: Rank) -> None:
    """Draw from both streams in turns, and from torch's own generator, elsewhere on every rank, in between.

    Answers: NAME for each draw; "alone" and a time for what torch's generator gives without streams, the time
    itself for what it gave beside them.
    """
    group = enter_group(rank)
    seed_generators(100 + rank.rank)
    for time in OUTSIDE:
        rank.answer(f"alone {time}", _draw(rank))
    seed_generators(100 + rank.rank)
    streams = rank.student.RandomStreams(rank.params["stream_seed"], group)
    other = rank.student.RandomStreams(rank.params["stream_seed"] + 1, group)
    rank.answer("made", _draw(rank))
    again = rank.student.RandomStreams(rank.params["stream_seed"], group)
    order = ["shared", "own", "own", "shared"] if rank.rank % 2 else ["own", "shared", "shared", "own"]
    for number, stream in enumerate(order):
        with getattr(streams, stream)():
            rank.answer(f"{stream} {order[: number + 1].count(stream)}", _draw(rank))
    for stream in ("shared", "own"):
        with getattr(other, stream)():
            rank.answer(f"{stream} of another seed", _draw(rank))
        with getattr(again, stream)():
            rank.answer(f"{stream} of the same seed", _draw(rank))
    rank.answer("left", _draw(rank))
    try:
        with streams.own():
            _draw(rank)
            raise _Planned
    except _Planned:
        pass
    rank.answer("left by an error", _draw(rank))
    with streams.own():
        rank.answer("own after an error", _draw(rank))


class _Planned(Exception):
    """Raised inside a stream on purpose."""


def _draw(rank: Rank) -> Tensor:
    return torch.rand(NUMBERS, device=rank.device)


def judge_streams(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Compare draws between ranks, between streams, and in time."""
    if case.params["kind"] == "subgroup":
        for answer in answers:
            first = answers[place_of(case, answer.rank).members[0]]
            same = _same(answer, first, "shared 1")
            told = "the shared stream of the group's ranks alike"
            yield finding("subgroup", same, told, "another draw than the group's first rank", answer)
            lonely = answer.rank == first.rank or not _same(answer, first, "own 1")
            yield finding("subgroup", lonely, "own streams of their own", "the first rank's draw", answer)
        return
    for answer in answers:
        for name in ("shared 1", "shared 2"):
            told = f"{name}: what rank 0 draws"
            yield finding("shared-stream", _same(answer, answers[0], name), told, "something else", answer)
        for earlier in answers[: answer.rank]:
            for name in ("own 1", "own 2"):
                apart = not _same(answer, earlier, name)
                told = f"{name}: not what rank {earlier.rank} draws"
                yield finding("own-streams", apart, told, "the same numbers", answer)
        apart = not _same_draw(answer, "own 1", "shared 1")
        yield finding("own-streams", apart, "other numbers than the shared stream's", "the same", answer)
        yield from _in_time(answer)


def _in_time(answer: RankAnswer) -> Iterator[Finding]:
    for stream in ("shared", "own"):
        again = _same_draw(answer, f"{stream} 1", f"{stream} 2")
        told = f"{stream}: goes on where it stopped"
        yield finding("streams-go-on", not again, told, "the same numbers again", answer)
        same = _same_draw(answer, f"{stream} 1", f"{stream} of the same seed")
        yield finding("streams-go-on", same, f"{stream}: set by the seed alone", "other numbers", answer)
        other = _same_draw(answer, f"{stream} 1", f"{stream} of another seed")
        yield finding(
            "streams-go-on", not other, f"{stream}: other numbers for another seed", "the same", answer
        )
    moved = _same_draw(answer, "own 2", "own after an error")
    yield finding("streams-go-on", not moved, "own: goes on after an error", "the same numbers again", answer)
    for time, when in OUTSIDE.items():
        told = f"from torch's own generator, {when}, what it gives without streams"
        unmoved = _same_draw(answer, time, f"alone {time}")
        yield finding("others-unmoved", unmoved, told, "other numbers", answer)


def _same(answer: RankAnswer, other: RankAnswer, name: str) -> bool:
    return torch.equal(answer.tensors[name], other.tensors[name])


def _same_draw(answer: RankAnswer, one: str, two: str) -> bool:
    return torch.equal(answer.tensors[one], answer.tensors[two])
