"""What the lessons import: run code on ranks, see what the ranks did, check what you built.

Names are imported when they are first used, so that `import labkit` is quick and brings neither torch nor
matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Not on first use like the others: `labkit.launch` is also the name of a package, which its import would
# leave here instead of the function.
from labkit.launch import Job, LaunchError, launch

if TYPE_CHECKING:
    from labkit.checks.practice import check as check
    from labkit.checks.scoreboard import score as score
    from labkit.checks.scoreboard import scoreboard as scoreboard
    from labkit.launch.session import session as session
    from labkit.magics import load_ipython_extension as load_ipython_extension
    from labkit.magics import unload_ipython_extension as unload_ipython_extension
    from labkit.record import progress as progress
    from labkit.record import slow_link as slow_link
    from labkit.record import span as span
    from labkit.record.trace import trace as trace

__all__ = ["Job", "LaunchError", "launch"]
__version__ = "0.1.0"

_HOMES = {
    "check": "labkit.checks.practice",
    "score": "labkit.checks.scoreboard",
    "scoreboard": "labkit.checks.scoreboard",
    "load_ipython_extension": "labkit.magics",
    "unload_ipython_extension": "labkit.magics",
    "progress": "labkit.record",
    "session": "labkit.launch.session",
    "span": "labkit.record",
    "slow_link": "labkit.record",
    "trace": "labkit.record.trace",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"labkit has no {name!r}; it has {', '.join(sorted([*_HOMES, *__all__]))}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, *__all__])
