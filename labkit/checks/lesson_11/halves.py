"""A second group beside the one that is looked at: who keeps the group of the last call is seen there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist
from torch import Tensor

from labkit.checks.rank import Rank

BESIDE = "with a call in another group"  # what is recorded of all that
AFTER_ANOTHER = "where a call in another group comes before backward"  # of a gradient, in words


def enter_half(rank: Rank) -> dist.ProcessGroup:
    """The group of this rank's half of the job. Every rank makes both, as torch asks."""
    ranks = list(range(rank.world_size))
    middle = rank.world_size // 2
    first, second = dist.new_group(ranks[:middle]), dist.new_group(ranks[middle:])
    return first if rank.rank < middle else second


def differentiate_after_another(
    rank: Rank,
    half: dist.ProcessGroup,
    given: Mapping[str, Tensor],
    grad: Tensor,
    attend: Callable[[Sequence[Tensor], dist.ProcessGroup], Tensor],
) -> None:
    """Answers beside.NAME, gradients of a call that another one, in this rank's `half` of the job, follows
    before its backward. Recording `BESIDE`. attend: (tensors, group) -> the output.
    """
    leaves = {name: t.detach().clone().requires_grad_() for name, t in given.items()}
    with rank.attempt("gradients"), rank.recording(BESIDE):
        out = attend(list(leaves.values()), rank.group)
        attend([1.0 - leaf for leaf in leaves.values()], half)
        out.backward(grad)
    for name, leaf in leaves.items():
        rank.answer(f"beside.{name}", leaf.grad)
