"""`%ranks debug 2`: a conversation with pdb on a rank, over the notebook's own input."""

from __future__ import annotations

import re

from IPython.core.error import UsageError

from labkit.launch.session import Session
from labkit.launch.staying_ranks import NotNow

_ASKED = re.compile(r"(?P<rank>\d*)(?:\s+(?P<command>\S.*))?")
_NOBODY = (
    "nobody can be asked here for the debugger's commands: give them one at a time, such as "
    "`%ranks debug {} w` or `%ranks debug {} p x`"
)


def debug(session: Session | None, asked: str) -> None:
    """Do as `%ranks debug` is asked: "2" is a conversation with rank 2, "2 p x" one command."""
    words = _ASKED.fullmatch(asked.strip())
    if words is None:
        told = "expected a rank, such as %ranks debug 2, and perhaps a command: %ranks debug 2 p x"
        raise UsageError(f"%ranks debug {asked}: {told}")
    if session is None:
        raise UsageError("%ranks debug: no ranks are running, and none has failed")
    rank = int(words["rank"]) if words["rank"] else None
    try:
        if words["command"]:
            print(session.debug(rank, words["command"]), end="")
        else:
            _converse(session, rank)
    except (NotNow, ValueError) as error:
        raise UsageError(f"%ranks debug: {error}") from None


def _converse(session: Session, rank: int | None) -> None:
    """Until the person leaves it, with q or an interrupt."""
    print(session.debug(rank) + "(h lists the commands, q leaves)")
    while True:
        try:
            line = input("(pdb) " if rank is None else f"(rank {rank}) ")
        except NotImplementedError:  # a frontend without input, such as nbconvert
            print(_NOBODY.format(rank or 0, rank or 0))
            return
        except (EOFError, KeyboardInterrupt):
            return
        if line.strip() in ("q", "quit", "exit"):
            return
        print(session.debug(rank, line), end="")
