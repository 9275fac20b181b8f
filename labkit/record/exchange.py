"""What ranks send each other in an all-to-all, part by part, and where two of them do not agree in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Parts = Mapping[int, Sequence[int]]  # a peer's global rank -> bytes for it, bytes expected from it


@dataclass(frozen=True)
class Misfit:
    """A rank sends another rank more or fewer bytes than that one expects from it."""

    sender: int
    receiver: int
    sent: int
    expected: int


def parts_by_peer(members: Sequence[int], sent: Sequence[int], received: Sequence[int]) -> Parts:
    """The parts of one rank's call, with sizes in the order of the group; {} where they are not known."""
    if not len(members) == len(sent) == len(received):
        return {}
    return dict(zip(members, zip(sent, received, strict=True), strict=True))


def find_misfit(one_rank: int, one: Parts, other_rank: int, other: Parts) -> Misfit | None:
    """Where what one of two ranks sends is not what the other expects; None where it is, or is not known."""
    ways = ((one_rank, one, other_rank, other), (other_rank, other, one_rank, one))
    for sender, parts, receiver, theirs in ways:
        if receiver in parts and sender in theirs and parts[receiver][0] != theirs[sender][1]:
            return Misfit(sender, receiver, parts[receiver][0], theirs[sender][1])
    return None


def leaving_bytes(rank: int, members: Sequence[int], sent: Sequence[int]) -> int:
    """Bytes that leave a rank: those of all parts but its own; 0 where no parts are known."""
    return sum(size for member, size in zip(members, sent, strict=False) if member != rank)
