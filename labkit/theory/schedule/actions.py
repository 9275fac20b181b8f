"""A pipeline schedule is data: for each rank, the list of what it does, in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Kind = Literal["forward", "backward", "input_backward", "weight_backward"]

LETTERS: Final[dict[str, str]] = {
    "forward": "F",
    "backward": "B",
    "input_backward": "I",
    "weight_backward": "W",
}
"""How each kind is written in short. I and W are the two halves of B that zero-bubble schedules part."""


class Action(NamedTuple):
    """One thing a rank does: the forward or backward of one micro-batch through one stage.

    kind: "forward" or "backward"; in zero-bubble schedules "input_backward" (the gradient the stage before
        waits for) and "weight_backward" (the gradients of the weights, which nobody waits for).
    stage, micro_batch: from 0.
    """

    kind: Kind
    stage: int
    micro_batch: int

    @property
    def label(self) -> str:
        """In short, without the stage: F3."""
        return f"{LETTERS.get(self.kind, self.kind)}{self.micro_batch}"

    def __str__(self) -> str:
        return f"{self.label} on stage {self.stage}"


Schedule = Sequence[Sequence[Action]]
"""One list of actions a rank. Whoever has an action of a stage in its list owns that stage."""


def read_actions(text: str, stage: int) -> list[Action]:
    """Actions of one stage from their short form: `read_actions("F0 F1 B0 B1", stage=2)`."""
    kinds: dict[str, Kind] = {letter: kind for kind, letter in LETTERS.items()}  # type: ignore[misc]
    actions = []
    for word in text.split():
        if not re.fullmatch(r"[FBIW]\d+", word):
            raise ValueError(f"expected words like F0, B3, I3 or W3, found {word!r}")
        actions.append(Action(kinds[word[0]], stage, int(word[1:])))
    return actions
