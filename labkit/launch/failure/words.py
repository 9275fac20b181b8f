"""Sentences about ranks and what they wait for."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from labkit.launch.failure.deadlock import Mismatch
from labkit.record.exchange import Misfit
from labkit.record.state import State, Wait, group_key

MISMATCH_HINT = (
    "every rank of a group must make the same calls in the same order, with the same arguments, dtype and "
    "sizes, a recv needs the dtype, size, tag and group of its send, and what a rank expects from another in "
    "an all_to_all must be what that one sends it: look for an `if rank == ...`, a shape that depends on the "
    "rank, or counts that came from another group, before these lines"
)

_GROUPS_HINT = "ranks that belong to several groups must call on them in the same order everywhere"
_UNPAIRED_HINT = (
    "each send needs a recv on the other rank, and each recv a send; what isend and irecv return has to be "
    "kept, and waited for"
)
_CROSSING_HINT = "a send waits until the other side receives: let one of the two receive first, or use isend"

ITSELF_HINT = (
    "a rank cannot receive from itself: on a group of one rank, or where the neighbour is the rank itself, "
    "copy the tensor and send nothing"
)

MOST_NAMED = 16  # ranks, one by one
MOST_TOLD = 8  # ranks with a sentence each

LOCKED_OUT = "code that closes, limits or locks what its own process writes to does that"


def ranks(numbers: Sequence[int]) -> str:
    """[2] -> "rank 2"; [0, 1, 3] -> "ranks 0, 1 and 3"; 0 to 99 -> "ranks 0 to 99"; none, where there was no
    room for their numbers -> "a group of ranks".
    """
    if not numbers:
        return "a group of ranks"
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    first, last = numbers[0], numbers[-1]
    if len(numbers) > MOST_NAMED and list(numbers) == list(range(first, last + 1)):
        return f"ranks {first} to {last}"
    if len(numbers) > MOST_NAMED:
        named = ", ".join(map(str, numbers[: MOST_NAMED - 1]))
        return f"ranks {named} and {len(numbers) - MOST_NAMED + 1} more"
    return "ranks " + ", ".join(map(str, numbers[:-1])) + f" and {last}"


def wait(wait: Wait) -> str:
    """What a rank waits for: 'all_reduce (its 3rd call on ranks 0, 1) of float32 (4, 8)'."""
    tensor = f" of {wait.dtype} {wait.shape}" if wait.dtype else ""
    if wait.op == "send":
        return f"send to rank {wait.peer}{tensor}"
    if wait.op == "recv":
        return f"recv from {f'rank {wait.peer}' if wait.peer >= 0 else 'any rank'}{tensor}"
    return f"{wait.op}{tensor}, call {wait.number} on {ranks(wait.members)}"


_NATIVE = {
    "_engine_run_backward": "backward()",
    "_verify_param_shape_across_processes": "DistributedDataParallel()",
    "_sync_module_states": "DistributedDataParallel()",
    "_broadcast_coalesced": "DistributedDataParallel()",
}


def communicates_by_itself(stack: str) -> str:
    """What of torch's that waits for other ranks a stack of faulthandler ends in; "" for anything else."""
    innermost = re.search(r'File ".*", line \d+ in (\w+)', stack.rpartition("Current thread")[2])
    return _NATIVE.get(innermost[1], "") if innermost else ""


def place(wait: Wait) -> str:
    """Where the call is: 'file:line', or ''."""
    return f"{wait.file}:{wait.line}" if wait.file else ""


def killed_by(number: int) -> str:
    """What a signal usually means."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    meaning = {
        "SIGSEGV": " (a crash in compiled code: segmentation fault)",
        "SIGABRT": " (compiled code gave up: abort)",
        "SIGKILL": " (from outside: the out-of-memory killer, or kill -9)",
    }
    return f"ended by {name}{meaning.get(name, '')}"


def mismatch(found: Mismatch) -> str:
    """Which two ranks called what."""
    one, other = found.one, found.other
    if found.part is not None:
        return _misfit(found, found.part)
    what = {
        "op": "different collectives",
        "dtype": "the same collective with different dtypes",
        "size": "the same collective with different sizes",
        "tag": "send and recv with different tags",
        "group": "send and recv on different groups",
        "detail": "the same collective with different arguments",
    }[found.kind]
    if found.kind == "group":
        there = "another group of the same ranks" if one.members == other.members else ranks(other.members)
        return (
            f"ranks called {what}: rank {found.first} {_called(one)} on {ranks(one.members)}, "
            f"rank {found.second} {_called(other)} on {there}"
        )
    if one.point_to_point:
        what = what.replace("the same collective", "send and recv")
        return f"ranks called {what}: rank {found.first} {_called(one)}, rank {found.second} {_called(other)}"
    return (
        f"ranks called {what} as call {one.number} on {ranks(one.members)}: "
        f"rank {found.first} {_called(one)}, rank {found.second} {_called(other)}"
    )


def _misfit(found: Mismatch, part: Misfit) -> str:
    sent, expected = (found.one, found.other) if part.sender == found.first else (found.other, found.one)
    sends = f"rank {part.sender} sends {part.sent} bytes of {sent.dtype} to"
    call = f"in {sent.op}, call {sent.number} on {ranks(sent.members)}, at {place(sent)}"
    if part.sender == part.receiver:
        return f"{sends} itself {call}, but expects {part.expected} bytes from itself"
    expects = f"rank {part.receiver} expects {part.expected} bytes from it at {place(expected)}"
    return f"{sends} rank {part.receiver} {call}, but {expects}"


def _called(wait: Wait) -> str:
    tensor = f" of {wait.dtype} {wait.shape}" if wait.dtype else ""
    detail = f"tag {wait.tag}" if wait.point_to_point else wait.detail
    return f"{_short(wait)}{f' ({detail})' if detail else ''}{tensor}" + (
        f" at {place(wait)}" if wait.file else ""
    )


def deadlock(states: Sequence[State]) -> tuple[int, str, str]:
    """The first rank that waits in vain, what for, and a hint. Some rank must be waiting."""
    waits = {rank: state.wait for rank, state in enumerate(states) if state.phase == "waiting" and state.wait}
    for rank, wait in waits.items():
        if wait.point_to_point and wait.peer >= 0:
            other = waits.get(wait.peer)
            if wait.op == "send" and other and other.op == "send" and other.peer == rank:
                summary = f"ranks {rank} and {wait.peer} send to each other, and neither receives"
                return rank, summary, _CROSSING_HINT
            summary = f"rank {rank} waits in {_short(wait)}, but {_doing(wait.peer, states)}"
            return rank, summary, _UNPAIRED_HINT
    for rank, wait in waits.items():
        missing = _missing(rank, wait, states)
        crossing = _in_another_group(missing, wait, states)
        if crossing is not None:
            other = waits[crossing]
            which = f"{ranks(other.members)}"
            if other.members == wait.members:
                which = "another group of the same ranks"
            summary = (
                f"rank {rank} waits in {wait.op} on {ranks(wait.members)}, "
                f"but rank {crossing} waits in {other.op} on {which}"
            )
            return rank, summary, _GROUPS_HINT
        if missing:
            doing = "; ".join(_doing_together(missing, states))
            summary = f"rank {rank} waits in {_short(wait)}, but {doing}"
            return rank, summary, "every rank of a group must make the same number of collective calls"
    rank = min(waits)
    return rank, f"rank {rank} waits in {_short(waits[rank])}", ""


def _short(wait: Wait) -> str:
    if wait.op == "send":
        return f"send to rank {wait.peer}"
    if wait.op == "recv":
        return f"recv from {f'rank {wait.peer}' if wait.peer >= 0 else 'any rank'}"
    return wait.op


def _missing(rank: int, wait: Wait, states: Sequence[State]) -> list[int]:
    key = group_key(wait.group)
    return [
        m for m in wait.members if m != rank and m < len(states) and states[m].calls.get(key, 0) < wait.number
    ]


def _in_another_group(numbers: Sequence[int], wait: Wait, states: Sequence[State]) -> int | None:
    """The first of these ranks that waits in a collective of another group than `wait`'s."""
    for rank in numbers:
        other = states[rank].wait
        if (
            states[rank].phase == "waiting"
            and other
            and not other.point_to_point
            and other.group != wait.group
            and "new_group" not in (other.op, wait.op)
        ):
            return rank
    return None


def _doing_together(numbers: Sequence[int], states: Sequence[State]) -> list[str]:
    """A sentence for each rank, and one for all that have finished."""
    finished = [rank for rank in numbers if states[rank].phase in ("finished", "idle")]
    others = [rank for rank in numbers if rank not in finished]
    together = f"{ranks(finished)} have finished"
    told = [together] if len(finished) > 1 else [_doing(rank, states) for rank in finished]
    told += [_doing(rank, states) for rank in others[:MOST_TOLD]]
    more = len(others) - MOST_TOLD
    return [*told, f"and {more} more have not made the call"] if more > 0 else told


def _doing(rank: int, states: Sequence[State]) -> str:
    state = states[rank]
    if state.phase == "waiting" and state.wait is not None:
        return f"rank {rank} waits in {_short(state.wait)}"
    return (
        f"rank {rank} has finished"
        if state.phase in ("finished", "idle")
        else f"rank {rank} is {state.phase}"
    )
