"""The library's parts as `09.train-3d` hands them over: with note of what is done with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch.distributed as dist

COUNTED = ("block", "cross_entropy", "schedule", "run_schedule")  # parts that nobody does without


class _Watched:
    """The library's random streams, and note of who asked for which."""

    def __init__(self, made: list[dict[str, Any]], seed: int, group: Any):
        from labkit.parallel.streams import RandomStreams

        self._streams = RandomStreams(seed, group)
        self.note: dict[str, Any] = {
            "seed": int(seed),
            "group": dist.get_process_group_ranks(group),
            "shared": 0,
            "own": 0,
        }
        made.append(self.note)

    def shared(self) -> Any:
        self.note["shared"] += 1
        return self._streams.shared()

    def own(self) -> Any:
        self.note["own"] += 1
        return self._streams.own()


def watched_parts(made: list[dict[str, Any]], **more: Any) -> Any:
    """The library's parts, whose streams are noted in `made`. more: parts that stand in for others."""
    from labkit.parallel import library_parts

    return replace(library_parts(), streams=partial(_Watched, made), **more)


def counted_parts(used: Counter[str], under_way: list[int]) -> Any:
    """The library's parts, whose calls are counted in `used`: of the embedding, how many are made. under_way:
    of each schedule that is run, how many micro-batches it keeps at most.
    """
    from labkit.parallel import library_parts

    parts = library_parts()
    parts = replace(parts, run_schedule=_noted(under_way, parts.run_schedule))
    counted = {name: _counted(used, name, getattr(parts, name)) for name in COUNTED}
    return replace(parts, **counted, embedding=_counting_embedding(used, parts.embedding))


def most_under_way(actions: Sequence[Any]) -> int:
    """How many micro-batches have been forward and not backward, at most."""
    changes = (1 if action.kind == "forward" else -1 for action in actions)
    return max(accumulate(changes), default=0)


def _noted(under_way: list[int], run_schedule: Callable[..., Any]) -> Callable[..., Any]:
    def noted(part: Any, actions: Sequence[Any], group: Any) -> Any:
        under_way.append(most_under_way(actions))
        return run_schedule(part, actions, group)

    return noted


def _counted(used: Counter[str], name: str, part: Callable[..., Any]) -> Callable[..., Any]:
    """A part, whose calls are counted under that name."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        used[name] += 1
        return part(*args, **kwargs)

    return counted


def _counting_embedding(used: Counter[str], embedding: Any) -> Any:
    class Counting(embedding):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            used["embedding"] += 1
            super().__init__(*args, **kwargs)

    return Counting
