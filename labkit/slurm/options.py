"""The options of `labkit lab` that are about Slurm jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def slurm_options(command: _Command) -> _Command:
    """Add them to a command, which receives them by name."""
    options = (
        click.option("--site", default="", help="With --slurm: a site file, or its name in cluster/sites."),
        click.option("--nodes", type=click.IntRange(1), default=1, help="With --slurm: how many nodes."),
        click.option("--gpus", type=click.IntRange(0), default=None, help="With --slurm: GPUs on each node."),
        click.option("--time", default="", help="With --slurm: how long, such as 02:00:00."),
        click.option("--partition", default="", help="With --slurm."),
        click.option("--account", default="", help="With --slurm."),
        click.option("--idle", type=float, default=30.0, show_default=True,
                     help="With --slurm: minutes without use after which it ends; 0 for never."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command
