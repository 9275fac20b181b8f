"""Random streams in groups of more ranks than a case has: each rank asks as if it were one after another of
a large group's. Streams are set by a number, so that nobody else need be there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.exercise import Evidence, Finding
from labkit.checks.rank import Rank

MANY = 192  # ranks: as many for each of 1, 2, 3 or 4, who ask for them in turns
SEEDS = 12  # one after another
NUMBERS = 8


def draw_in_a_large_group(rank: Rank) -> None:
    """Answers: "own of many" and "shared of many", of each seed the first numbers of some of `MANY` ranks,
    [seeds, ranks, numbers]. Fact: many, an error on the way. All ranks ask for as many, so that who
    communicates finds the others.
    """
    first = rank.params["stream_seed"]
    mine = range(rank.rank, MANY, rank.world_size)
    with rank.expect_error("many"):
        drawn = [_first_numbers(rank, first + more, number) for more in range(SEEDS) for number in mine]
        for place, stream in enumerate(("own", "shared")):
            numbers = torch.stack([both[place] for both in drawn])
            rank.answer(f"{stream} of many", numbers.view(SEEDS, len(mine), NUMBERS))


def _first_numbers(rank: Rank, seed: int, number: int) -> tuple[Tensor, Tensor]:
    """What a rank of that number draws first, from its own stream and from the shared one."""
    with _as_rank(number, MANY):
        streams = rank.student.RandomStreams(seed, dist.group.WORLD)
        with streams.own():
            own = torch.rand(NUMBERS, device=rank.device)
        with streams.shared():
            return own, torch.rand(NUMBERS, device=rank.device)


@contextlib.contextmanager
def _as_rank(number: int, size: int) -> Iterator[None]:
    """Inside, groups say that this process is their rank of that number, of so many: `dist.get_rank` asks
    them, and so may who has the group.
    """
    said = {"rank": number, "size": size}
    before = {name: vars(dist.ProcessGroup)[name] for name in said}
    for name, value in said.items():
        setattr(dist.ProcessGroup, name, lambda group, value=value: value)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(dist.ProcessGroup, name, method)


# -- judge


def apart_in_a_large_group(evidence: Evidence) -> Iterator[Finding]:
    """No two of many ranks have a stream in common, nor has any the shared one. Who finds out a rank's number
    in another way than by the group's `rank`, and so draws the same as each of them, is passed over; so is
    who does not get that far.
    """
    if any("own of many" not in answer.tensors for answer in evidence.answers):
        return
    seed, size = evidence.case.params["stream_seed"], evidence.case.ranks
    own = torch.stack([answer.tensors["own of many"] for answer in evidence.answers], dim=2).flatten(1, 2)
    shared = evidence.answers[0].tensors["shared of many"][:, 0]
    told = f"own: in groups of up to {MANY} ranks numbers that no other rank draws, nor the shared stream"
    for more in range(SEEDS if len(own[0].unique(dim=0)) > size else 0):
        yield Finding(*_who_is_alike(own[more], shared[more], told, seed + more))


def _who_is_alike(own: Tensor, shared: Tensor, told: str, seed: int) -> tuple[bool, str, str]:
    """own: [ranks, numbers]. The first pair of streams that begin alike."""
    streams = torch.cat([shared.unsqueeze(0), own])
    alike = torch.cdist(streams, streams, p=0) == 0
    pairs = alike.triu(1).nonzero().tolist()
    if not pairs:
        return True, told, ""
    first, second = pairs[0]
    other = "shared()" if first == 0 else f"own() of rank {first - 1}"
    return False, told, f"own() of rank {second - 1} is {other}, with seed {seed}"
