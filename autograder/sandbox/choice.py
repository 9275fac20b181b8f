"""Which kind of sandbox this machine gets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from autograder.sandbox import apptainer, bubblewrap
from autograder.sandbox.sandbox import Limits, NoSandbox, Sandbox
from labkit.cgroups import NoGroup, divisible_group

CHOICE = "LABKIT_SANDBOX"  # names the kind to use, where the first that works is not wanted
FINDERS: dict[str, Callable[[Limits], Sandbox]] = {
    "bubblewrap": bubblewrap.find,
    "apptainer": apptainer.find,
}


def find_sandbox(limits: Limits | None = None, kind: str = "") -> Sandbox:
    """The sandbox of this machine: of that kind, or else of the one LABKIT_SANDBOX names, or else the first
    that works. NoSandbox says what to install, or what stands in the way.
    """
    wanted = kind or os.environ.get(CHOICE, "")
    if wanted and wanted not in FINDERS:
        raise NoSandbox(f"{CHOICE}: expected {' or '.join(FINDERS)}, found {wanted!r}")
    obstacles = []
    for name in [wanted] if wanted else FINDERS:
        try:
            return replace(FINDERS[name](limits or Limits()), groups=_groups())
        except NoSandbox as obstacle:
            obstacles.append(f"- {name}: {obstacle}")
    asked_for = f" ({wanted} was asked for)" if wanted else ""
    lines = [
        f"student code needs a sandbox and this machine has none{asked_for}.",
        *obstacles,
        "To try the grader without one, on code you trust, add --unsafe-no-sandbox: grades are marked.",
    ]
    raise NoSandbox("\n".join(lines))


@cache
def _groups() -> Path | None:
    """Where sandboxes get a control group each; None where limits are kept by looking alone."""
    try:
        return divisible_group()
    except NoGroup:
        return None
