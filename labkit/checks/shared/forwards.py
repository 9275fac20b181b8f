"""What a module is asked to compute, by whoever asks: hooks do not see a direct call of `forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def note_forwards(
    module: nn.Module,
    before: Callable[..., None] = lambda *arguments: None,
    after: Callable[[Any], None] = lambda output: None,
) -> None:
    """From now on, `before` is handed the arguments of each forward, and `after` what it gives."""
    forward = module.forward

    def noted(*arguments: Any, **named: Any) -> Any:
        before(*arguments, *named.values())
        output = forward(*arguments, **named)
        after(output)
        return output

    vars(module)["forward"] = noted
