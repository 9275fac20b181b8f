"""What an outer torchrun, Slurm step or job told a process about ranks, which those of a new one ignore."""

from __future__ import annotations

from collections.abc import Mapping

_INHERITED = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def inherited(environment: Mapping[str, str]) -> list[str]:
    """The names of such variables in an environment."""
    return [name for name in environment if name in _INHERITED or name.startswith("TORCHELASTIC_")]
