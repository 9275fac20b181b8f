"""What a figure of the student's own code should look like: the reference's, recorded, and folded away."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labkit.show.html import render

RECORDED = Path(__file__).with_name("targets")


@dataclass(frozen=True)
class Target:
    """A recorded figure, as the HTML of its output."""

    shown: str

    def _repr_html_(self) -> str:
        return render("target", shown=self.shown)

    def __repr__(self) -> str:
        return "[what it should look like: a recorded figure]"


def target(name: str) -> Target:
    """The recorded figure `name`, folded: what the next cell shows when the exercise is solved.

    Raises LookupError, naming those there are.
    """
    path = RECORDED / f"{name}.html"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in RECORDED.glob("*.html")))
        raise LookupError(f"expected the name of a recorded figure ({known}), found {name!r}")
    return Target(path.read_text(encoding="utf-8"))
