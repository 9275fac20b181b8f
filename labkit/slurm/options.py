"""The options of `labkit lab` that are about Slurm jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Asked:
    """What somebody wants of a JupyterLab in a job. What is left as it is here, the site decides.

    gpus, cpus, mem: of each node. idle: minutes without use after which it ends; 0 for never.
    queue: seconds it may wait for its turn; 0 for as long as it takes.
    """

    site: str = ""
    nodes: int = 1
    gpus: int | None = None
    cpus: int | None = None
    mem: str = ""
    time: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    queue: float = 0.0
    idle: float = 30.0

    def given(self) -> list[str]:
        """The options that somebody has given, as "--nodes"."""
        return [f"--{one.name}" for one in fields(self) if getattr(self, one.name) != one.default]


def slurm_options(command: _Command) -> _Command:
    """Add them to a command, which receives the fields of `Asked` by name."""
    options = (
        _option("site", ": a site file, or its name in cluster/sites."),
        _option("nodes", ": how many nodes.", type=click.IntRange(1)),
        _option("gpus", ": GPUs on each node.", type=click.IntRange(0)),
        _option("cpus", ": cores on each node.", type=click.IntRange(1)),
        _option("mem", ": memory on each node, such as 16G."),
        _option("time", ": how long, such as 02:00:00."),
        _option("partition", "."),
        _option("account", "."),
        _option("qos", ": a quality of service."),
        _option("queue", ": seconds it may wait for its turn; 0 for no end.", type=click.FloatRange(0)),
        _option(
            "idle",
            ": minutes without use after which it ends; 0 for never.",
            type=click.FloatRange(0),
            show_default=True,
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _option(name: str, says: str, **how: Any) -> Callable[[_Command], _Command]:
    return click.option(f"--{name}", default=getattr(Asked, name), help=f"With --slurm{says}", **how)
