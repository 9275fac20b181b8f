"""What an instructor sets for a course, kept in its folder: the seed of each lesson, and whether there is
a sandbox.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from autograder.sandbox.choice import find_sandbox
from autograder.sandbox.sandbox import Sandbox
from autograder.sandbox.unconfined import Unconfined
from labkit.whole_file import write_whole

FILE = "autograder.json"


class BadSettings(ValueError):
    """The course's settings cannot be read; the message names the file."""


class _Kept(msgspec.Struct):
    """What the file has. A text is no bool: "false" would be taken for true, and there were no sandbox."""

    seeds: dict[str, int]
    unsafe: bool


@dataclass
class Settings:
    """seeds: lesson -> what its cases are drawn from, chosen once, so that every student of a lesson gets
    the same.
    """

    course: Path
    seeds: dict[str, int] = field(default_factory=dict)
    unsafe: bool = False

    @classmethod
    def load(cls, course: Path) -> Settings:
        """The course's settings; BadSettings names the file when it cannot be read."""
        path = course / FILE
        if not path.exists():
            return cls(course)
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
            return cls(course, kept.seeds, kept.unsafe)
        except (ValueError, msgspec.MsgspecError) as error:
            raise BadSettings(
                f"{path} cannot be read ({error}); expected {{'seeds': {{...}}, 'unsafe': false}}; put a "
                "copy of it back, as another seed grades everybody again"
            ) from None

    def save(self) -> None:
        """Write them into the course."""
        text = json.dumps({"seeds": self.seeds, "unsafe": self.unsafe}, indent=1) + "\n"
        write_whole(self.course / FILE, text.encode())

    def seed(self, lesson: str) -> int:
        """The lesson's seed, drawn and kept the first time it is asked for."""
        if lesson not in self.seeds:
            self.seeds[lesson] = secrets.randbelow(2**53)
            self.save()
        return self.seeds[lesson]

    def sandbox(self) -> Sandbox:
        """This machine's sandbox, or none where the course says so. NoSandbox otherwise."""
        return Unconfined() if self.unsafe else find_sandbox()
