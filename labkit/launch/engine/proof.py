"""Ranks prove to each other that they are of one job, on each connection, before anything else is sent there.

gloo listens on TCP ports and takes who comes first for the rank that it waits for, another user of the
machine too. What ranks send each other can be pickled objects, and to read these is to run what they say. So
each member of a new group sends each other one a code that only who has the job's key can make, and reads
nothing else until it has theirs. The codes of a pair differ by direction and group: one that was overheard
is of no use anywhere else.
"""

from __future__ import annotations

import hmac
from datetime import timedelta

import torch
import torch.distributed as dist

from labkit.torch_private_distributed import GlooTalk, watch_connected

_PATIENCE = timedelta(seconds=30)  # all others are connected by then: only busy processors take time
_CODE_BYTES = 32
_TAG = 0x1AB


def prove_in_groups(key: str) -> None:
    """Have every group that torch makes in this process from now on begin with the proof. key: of the job."""
    watch_connected(lambda group: _prove(key.encode(), group))


def code(key: bytes, *said: object) -> bytes:
    """What only who has the key can make of these words."""
    return hmac.digest(key, "\0".join(map(str, said)).encode(), "sha256")


def _prove(key: bytes, group: dist.ProcessGroup) -> None:
    """ConnectionError when something else than a rank of this job is where one should be."""
    talk = GlooTalk.of(group)
    if talk is None:
        return
    name, me = group.group_name, group.rank()
    others = [rank for rank in range(group.size()) if rank != me]
    heard = {other: torch.zeros(_CODE_BYTES, dtype=torch.uint8) for other in others}
    hearing = {other: talk.hear(heard[other], other, _TAG) for other in others}
    saying = {other: talk.say(_as_tensor(code(key, name, me, other)), other, _TAG) for other in others}
    for other in others:
        _wait(talk, hearing[other], other)
        if not hmac.compare_digest(bytes(heard[other].tolist()), code(key, name, other, me)):
            told = f"somebody who is not of this job connected in place of rank {other}"
            raise ConnectionError(f"{told}, to group {name!r} while it was made; nothing was read")
    for other in others:  # last: who is no rank may never take it
        _wait(talk, saying[other], other)


def _wait(talk: GlooTalk, work: dist.Work, other: int) -> None:
    try:
        talk.wait(work, _PATIENCE)
    except RuntimeError as error:
        raise ConnectionError(f"rank {other} did not show that it is of this job: {error}") from None


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
