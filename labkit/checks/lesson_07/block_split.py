"""The block that `07.tensor-parallel-block` cuts, and how it is built of a student's parts."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from labkit.checks.case import Case
from labkit.checks.lesson_07.modules import activations, config_of, sequence_parallel, with_eps
from labkit.checks.rank import Rank
from labkit.checks.shared.cuts import cut_block
from labkit.checks.shared.split import Split, dtype_of
from labkit.model import Block, explicit_attention


def _plain(case: Case) -> nn.Module:
    """The whole block; `residual`, where the case has it, is what is dropped of what it adds to x."""
    block = Block(config_of(case), explicit_attention).to(dtype_of(case))
    block.dropout.p = case.params.get("residual", block.dropout.p)
    return with_eps(block, case)


def streams_of(rank: Rank, group: dist.ProcessGroup) -> Any:
    """The student's streams, or those put in, for a block."""
    return rank.student.RandomStreams(rank.case.seed, group)


BLOCK = Split(
    plain=_plain,
    build=lambda rank, full, group: rank.student.TensorParallelBlock(
        full, group, streams_of(rank, group), sequence_parallel(rank.case)
    ),
    cut=cut_block,
    drawn=activations,
)
