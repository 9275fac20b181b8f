"""What makes a list of actions GPipe, 1F1B or interleaved: not its letter, but what it does when played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from labkit.checks.case import JSON, Case
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import refused
from labkit.checks.shared.plain_numbers import number_or_words
from labkit.theory.schedule import Action, Costs, Kind, ScheduleError, Simulation, dry_run, simulate

# seconds of each; a backward need not cost two forwards
FORWARD_AND_BACKWARD = ((1.0, 1.0), (1.0, 2.0), (2.0, 3.5), (3.0, 1.0))

AS_DECLARED = "a list of Actions"
HANDED_OUT = "the very list of the call before"
FAR = 10  # times what there is: an answer that is a little outside is told what it did there


@dataclass(frozen=True)
class Size:
    """How many ranks, micro-batches, and chunks a rank."""

    ranks: int
    micro_batches: int
    chunks: int = 1

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    def __str__(self) -> str:
        chunks = f", {self.chunks} chunks a rank" if self.chunks > 1 else ""
        return f"{self.ranks} ranks, {self.micro_batches} micro-batches{chunks}"


Lists = list[list[Action]]
Call = Callable[[Rank, int, Size], object]
"""The student's list of a rank."""
Rule = Callable[[Size, Lists], Iterator[Finding]]
"""What the lists of one size show."""


def sizes_of(case: Case) -> list[Size]:
    """The sizes that a case asks for."""
    return [Size(*numbers) for numbers in case.params["sizes"]]


def ask_for_lists(call: Call) -> Callable[[Rank], None]:
    """On the rank: every rank's list for every size of the case, as facts; and what each was, in words."""

    def on_rank(rank: Rank) -> None:
        for size in sizes_of(rank.case):
            lists: list[Any] = [call(rank, r, size) for r in range(size.ranks)]
            again = [call(rank, r, size) for r in range(size.ranks)]
            kinds = [HANDED_OUT if a is b else _kind(a) for a, b in zip(lists, again, strict=True)]
            rank.fact(_kinds_of(size), kinds)
            rank.fact(str(size), [[_as_facts(action) for action in actions] for actions in lists])

    return on_rank


def _kinds_of(size: Size) -> str:
    return f"kinds, {size}"


def _kind(actions: Any) -> str:
    """`AS_DECLARED`, or what stands in its place. What a generator gives comes here as a tuple."""
    if not isinstance(actions, list):
        return f"a {type(actions).__name__}"
    others = sorted({type(action).__name__ for action in actions if not isinstance(action, Action)})
    return f"a list with {', '.join(others)}" if others else AS_DECLARED


def _as_facts(action: Iterable[object]) -> list[JSON]:
    """An action's kind and its numbers, numpy's and torch's too."""
    return [part if isinstance(part, str) else number_or_words(part) for part in action]


def ask_for_the_impossible(call: Call) -> Callable[[Rank], None]:
    """On the rank: what every size of the case raises on each of its ranks, as facts."""

    def on_rank(rank: Rank) -> None:
        for size in sizes_of(rank.case):
            for r in range(size.ranks):
                with rank.expect_error(_asked_on(r, size)):
                    call(rank, r, size)

    return on_rank


def _asked_on(rank: int, size: Size) -> str:
    return f"rank {rank} of {size}"


def ask_in_turn(rank: Rank) -> None:
    """On the rank: the student's in_turn of actions in no order, for every warm-up and number of the case. A
    fact each: what came out, and whether the lists are as they were.
    """
    for warm_up, count in rank.params["turns"]:
        forwards, backwards = shuffled_actions(rank.case, count)
        handed = [*forwards], [*backwards]
        actions: Any = rank.student.in_turn(*handed, warm_up)
        rank.fact(
            f"{warm_up} of {count}",
            {
                "kind": _kind(actions),
                "actions": [_as_facts(action) for action in actions],
                "kept": handed == (forwards, backwards),
            },
        )


def shuffled_actions(case: Case, count: int) -> tuple[list[Action], list[Action]]:
    """So many forwards and as many backwards, of several stages, in no order."""
    places = [(stage, i) for stage in range(3) for i in range(count)]
    draw = Random(f"{case.seed}/{count}")
    forwards, backwards = draw.sample(places, count), draw.sample(places, count)
    return [Action("forward", *place) for place in forwards], [Action("backward", *p) for p in backwards]


def takes_turns(evidence: Evidence) -> Iterator[Finding]:
    """What in_turn gave: `warm_up` forwards, one of each in turn, the backwards that are left."""
    for warm_up, count in evidence.case.params["turns"]:
        forwards, backwards = shuffled_actions(evidence.case, count)
        first = min(warm_up, count)
        wanted = [*forwards[:first]]
        for place, forward in enumerate(forwards[first:]):
            wanted += [forward, backwards[place]]
        wanted += backwards[count - first :]
        fact = evidence.answers[0].facts[f"{warm_up} of {count}"]
        seen = read_lists([fact["actions"]])[0]
        told = f"in_turn of {count} forwards with a warm-up of {warm_up}"
        yield Finding(seen == wanted, f"{told}: {_labels(wanted)}", _labels(seen))
        yield Finding(fact["kind"] == AS_DECLARED, f"{told}: {AS_DECLARED}, no generator", fact["kind"])
        yield Finding(fact["kept"], f"{told}: both lists as they were", "changed")


def _labels(actions: list[Action]) -> str:
    return " ".join(f"{action.label}/{action.stage}" for action in actions) or "nothing"


def in_every_size(rule: Rule) -> Judge:
    """The rule holds in every size. Lists that cannot be played fail whatever is asked of their playing."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for size in sizes_of(evidence.case):
            lists = read_lists(evidence.answers[0].facts[str(size)])
            if strange := _far_outside(size, lists):
                told = f"{2 * size.chunks * size.micro_batches} actions a rank, of stages 0 to "
                told += f"{size.stages - 1} and micro-batches 0 to {size.micro_batches - 1} ({size})"
                yield Finding(False, told, strange)
                continue
            try:
                for found in rule(size, lists):
                    yield replace(found, expected=f"{found.expected} ({size})")
            except ScheduleError as problem:
                yield Finding(False, f"a schedule that runs to its end ({size})", str(problem))

    return judge


def are_lists_of_actions(evidence: Evidence) -> Iterator[Finding]:
    """What every rank does is a list of Actions: what plays one asks for its length, and for `.kind`."""
    for size in sizes_of(evidence.case):
        for rank, kind in enumerate(evidence.answers[0].facts[_kinds_of(size)]):
            yield Finding(kind == AS_DECLARED, f"{AS_DECLARED}, no generator, on rank {rank} ({size})", kind)


def _far_outside(size: Size, lists: Lists) -> str:
    """What is so far from any schedule of that size that it is not played: what plays one makes room for the
    largest numbers in it.
    """
    stages, micro_batches = FAR * size.stages, FAR * size.micro_batches
    for rank, actions in enumerate(lists):
        if len(actions) > 2 * size.chunks * micro_batches:
            return f"{len(actions)} actions on rank {rank}"
        for action in actions:
            if _is_from(stages, action.stage) or _is_from(micro_batches, action.micro_batch):
                return f"{action} on rank {rank}"
    return ""


def _is_from(first: int, number: object) -> bool:
    return isinstance(number, int) and number >= first


def refuses_remainders(evidence: Evidence) -> Iterator[Finding]:
    """Micro-batches that are not a multiple of the ranks are a ValueError."""
    for size in sizes_of(evidence.case):
        for rank in range(size.ranks):
            found = refused(_asked_on(rank, size), ["ValueError"], evidence.answers[0])
            yield replace(found, expected=f"{found.expected} on rank {rank} ({size})")


def read_lists(facts: list[list[list[JSON]]]) -> Lists:
    """The lists as actions. ValueError where an entry is not (kind, stage, micro-batch)."""
    return [[Action(*_three(entry)) for entry in entries] for entries in facts]


def _three(entry: list[JSON]) -> tuple[JSON, JSON, JSON]:
    if len(entry) != 3:
        raise ValueError(f"expected actions of (kind, stage, micro_batch), found {entry}")
    return entry[0], entry[1], entry[2]


def every_action_once(size: Size, lists: Lists) -> Iterator[Finding]:
    """Each list has the forward and the backward of each micro-batch on the rank's stages, and no more."""
    for rank, actions in enumerate(lists):
        own = range(rank, size.stages, size.ranks)
        kinds: tuple[Kind, ...] = ("forward", "backward")
        wanted = Counter(Action(k, s, i) for k in kinds for s in own for i in range(size.micro_batches))
        seen = Counter(actions)
        missing, extra = wanted - seen, seen - wanted
        said = [f"{next(iter(missing))} is missing"] if missing else []
        said += [f"{next(iter(extra))} is one too many"] if extra else []
        yield Finding(not said, f"each of {sum(wanted.values())} actions once", "; ".join(said), rank)


def runs_to_its_end(size: Size, lists: Lists) -> Iterator[Finding]:
    """A dry run reaches every action of every list, and the lists are not short."""
    blocked = dry_run(lists)
    enough = sum(map(len, lists)) >= 2 * size.stages * size.micro_batches
    said = "; ".join(map(str, blocked)) or f"lists of {[len(a) for a in lists]} actions"
    yield Finding(not blocked and enough, "no rank blocked, and no action missing", said)


def forwards_first(size: Size, lists: Lists) -> Iterator[Finding]:
    """No forward stands behind a backward."""
    for rank, actions in enumerate(lists):
        first = next((i for i, a in enumerate(actions) if a.kind == "backward"), len(actions))
        late = next((a for a in actions[first:] if a.kind == "forward"), None)
        forwards = sum(a.kind == "forward" for a in actions)
        right = late is None and forwards == size.micro_batches
        said = f"{late} after {actions[first]}" if late else f"{forwards} forwards"
        yield Finding(right, f"{size.micro_batches} forwards, then the backwards", said, rank)


def takes_as_long_as(size: Size, lists: Lists) -> Iterator[Finding]:
    """m(t_f+t_b) of work and p-1 times (t_f+t_b)/v of bubble (Narayanan SC21, section 2.2)."""
    for forward, backward in FORWARD_AND_BACKWARD:
        played = simulate(lists, Costs(forward / size.chunks, backward / size.chunks))
        both = forward + backward
        wanted = size.micro_batches * both + (size.ranks - 1) * both / size.chunks
        what = f"{wanted:g} from first to last when forward takes {forward:g} and backward {backward:g}"
        right = abs(played.makespan - wanted) < 1e-9 * wanted
        yield Finding(right, what, f"{played.makespan:g}")


def works_at_once(size: Size, lists: Lists) -> Iterator[Finding]:
    """Several micro-batches are not taken through all stages one by one."""
    alone = size.micro_batches * size.stages * 2.0
    if size.ranks > 1 and size.micro_batches > 1:
        seen = simulate(lists, Costs(1, 1)).makespan
        told = f"less than the {alone:g} from first to last of one micro-batch at a time"
        yield Finding(seen < alone, told, f"{seen:g}")


def holds_at_most(limit: Callable[[Size, int], int]) -> Rule:
    """No rank ever has more forwards open than `limit(size, rank)`."""

    def rule(size: Size, lists: Lists) -> Iterator[Finding]:
        for rank, peak in enumerate(_peaks(size, simulate(lists))):
            most = limit(size, rank)
            told = f"at most {most} forwards waiting for their backward"
            yield Finding(1 <= peak <= most, told, str(peak), rank)

    return rule


def _peaks(size: Size, played: Simulation) -> list[int]:
    return [played.peak_in_flight(rank) for rank in range(len(played.starts))]
