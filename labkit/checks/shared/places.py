"""Where a rank stands: the group of a case that it works in, and its own position there."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import Case
from labkit.checks.rank import Rank


@dataclass(frozen=True)
class Place:
    """Where a rank stands: the index of its group, the group's global ranks, its own position among them."""

    index: int
    members: list[int]
    position: int

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.members)

    def block(self, tensor: Tensor, dim: int | None) -> Tensor:
        """A view of the part of `tensor` that this rank holds."""
        return tensor if dim is None else tensor.chunk(self.size, dim)[self.position]


def groups_of(case: Case) -> list[list[int]]:
    """The groups the ranks of a case work in: one of all ranks, unless the case says otherwise."""
    return case.params.get("groups") or [list(range(case.ranks))]


def place_of(case: Case, rank: int) -> Place:
    """The rank's place. ValueError if the case puts it in no group."""
    for index, members in enumerate(groups_of(case)):
        if rank in members:
            return Place(index, members, members.index(rank))
    raise ValueError(f"{case.name}: rank {rank} is in none of the groups {groups_of(case)}")


def enter_group(rank: Rank) -> dist.ProcessGroup:
    """The group this rank works in. Every rank makes all of them, as torch asks."""
    if "groups" not in rank.params:
        return rank.group
    made = [dist.new_group(members) for members in groups_of(rank.case)]
    return made[place_of(rank.case, rank.rank).index]
