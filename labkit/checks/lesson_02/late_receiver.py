"""A rank that is late for each message it receives: who fills again too early what it sends from is seen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

LATE = 0.05  # seconds: the sender needs a thousandth of it to its next message
RECEIVING = (
    "recv",
    "recv_anysource",
)  # methods of torch's ProcessGroup: all that receives ends in one of them


@contextlib.contextmanager
def receives_late() -> Iterator[None]:
    """Inside, this rank posts each receive a moment after it is asked to, however the call was imported.

    gloo reads what a rank sends when the receive is posted. A rank that comes late to a case is late for the
    first message alone: what follows the announcement of a shape leaves at once.
    """
    originals = {name: getattr(dist.ProcessGroup, name) for name in RECEIVING}
    for name, original in originals.items():
        setattr(dist.ProcessGroup, name, _late(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(dist.ProcessGroup, name, original)


def _late(original: Callable[..., Any]) -> Callable[..., Any]:
    def receive(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        time.sleep(LATE)
        return original(group, *args, **kwargs)

    return receive
