"""GPipe, 1F1B and interleaved 1F1B written down once more, for the tests of what plays schedules through."""

from __future__ import annotations

from labkit.theory.schedule import Action, Kind


def gpipe(p: int, m: int) -> list[list[Action]]:
    """All forwards, then all backwards in reverse."""
    return [_actions("forward", s, range(m)) + _actions("backward", s, range(m)[::-1]) for s in range(p)]


def one_f_one_b(p: int, m: int) -> list[list[Action]]:
    """min(p-r-1, m) forwards, then one forward and one backward in turn."""
    lists = []
    for stage in range(p):
        forwards, backwards = _actions("forward", stage, range(m)), _actions("backward", stage, range(m))
        warm_up = min(p - stage - 1, m)
        lists.append(forwards[:warm_up] + _in_turn(forwards[warm_up:], backwards))
    return lists


def interleaved(p: int, m: int, v: int) -> list[list[Action]]:
    """Megatron's order: groups of p micro-batches through chunk 0, 1, ..., v-1 of each rank."""
    assert m % p == 0
    lists = []
    for rank in range(p):
        up = [
            Action("forward", c * p + rank, g + i) for g in range(0, m, p) for c in range(v) for i in range(p)
        ]
        down = [
            Action("backward", c * p + rank, g + i)
            for g in range(0, m, p)
            for c in reversed(range(v))
            for i in range(p)
        ]
        warm_up = min(2 * (p - rank - 1) + (v - 1) * p, m * v)
        lists.append(up[:warm_up] + _in_turn(up[warm_up:], down))
    return lists


def _actions(kind: Kind, stage: int, micro_batches: range) -> list[Action]:
    return [Action(kind, stage, i) for i in micro_batches]


def _in_turn(forwards: list[Action], backwards: list[Action]) -> list[Action]:
    pairs = [a for pair in zip(forwards, backwards, strict=False) for a in pair]
    return pairs + backwards[len(forwards) :]
