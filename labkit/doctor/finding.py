"""What was found, and how a child is asked: whatever could hang or hold a device has a deadline there."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "missing", "failed"]

GIB = 2**30
MIB = 2**20
_SECONDS = 30.0  # for any one child


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    state: "ok"; "note", usable with a remark; "missing", something optional is not there; "failed", the
        course does not run without it.
    """

    topic: str
    state: State
    says: str
    install: str = ""  # the command that adds what is missing


def output_of(*command: str, seconds: float = _SECONDS) -> tuple[int, str]:
    """Exit status and output of a child: 124 when ended at its deadline, 127 when it does not exist."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {seconds:g} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode(errors="replace").strip()
