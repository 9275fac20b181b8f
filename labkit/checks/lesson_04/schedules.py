"""What makes a list of actions GPipe, 1F1B or interleaved: not its letter, but what it does when played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.exercise import Property
from labkit.checks.old_form import Exercise, Finding
from labkit.checks.rank import Rank
from labkit.theory.schedule import Action, Costs, Kind, ScheduleError, Simulation, dry_run, simulate

FORWARD_AND_BACKWARD = (
    (1.0, 1.0),
    (1.0, 2.0),
    (2.0, 3.5),
    (3.0, 1.0),
)  # a backward need not cost two forwards


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
Rule = Callable[[Size, Lists], Iterator[tuple[bool, str, str, int | None]]]
"""Yields (passed, expected, seen, rank) for the lists of one size."""


def ask_for_lists(call: Call) -> Callable[[Rank], None]:
    """On the rank: every rank's list for every size of the case, as facts; and what a wrong size raises."""

    def on_rank(rank: Rank) -> None:
        for numbers in rank.params.get("sizes", []):
            size = Size(*numbers)
            lists: list[Any] = [call(rank, r, size) for r in range(size.ranks)]
            rank.fact(str(size), [[list(action) for action in actions] for actions in lists])
        for numbers in rank.params.get("refused", []):
            with rank.expect_error(str(Size(*numbers))):
                call(rank, 0, Size(*numbers))

    return on_rank


def judge_lists(rules: Mapping[str, Rule]) -> Callable[[Case, Inputs, list[RankAnswer]], Iterator[Finding]]:
    """Each rule is a property's."""

    def judge(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
        facts = answers[0].facts
        for numbers in case.params.get("sizes", []):
            size = Size(*numbers)
            lists = read_lists(facts[str(size)])
            for name, rule in rules.items():
                yield from _findings("own-parts" if case.own_parts else name, size, rule(size, lists))
        for numbers in case.params.get("refused", []):
            yield refusal(Size(*numbers), facts[str(Size(*numbers))])

    return judge


def _findings(
    name: str, size: Size, results: Iterable[tuple[bool, str, str, int | None]]
) -> Iterator[Finding]:
    """A schedule that cannot be played fails whatever property is asked of its playing."""
    try:
        for passed, expected, seen, rank in results:
            yield Finding(name, passed, f"{expected} ({size})", seen, rank)
    except ScheduleError as problem:
        yield Finding(name, False, f"a schedule that runs to its end ({size})", str(problem))


def refusal(size: Size, fact: Mapping[str, JSON]) -> Finding:
    """Micro-batches that are not a multiple of the ranks were refused with a ValueError that names both."""
    numbers = (str(size.ranks), str(size.micro_batches))
    clear = "ValueError" in (fact.get("kinds") or []) and all(n in fact["message"] for n in numbers)
    said = f"{fact['raised']}: {fact['message']}" if fact["raised"] else "a list, and no error"
    return Finding("refuses-remainder", clear, f"a ValueError that names {' and '.join(numbers)}", said)


def read_lists(facts: list[list[list[JSON]]]) -> Lists:
    """The lists as actions. ValueError where an entry is not (kind, stage, micro-batch)."""
    return [[Action(*_three(entry)) for entry in entries] for entries in facts]


def _three(entry: list[JSON]) -> tuple[JSON, JSON, JSON]:
    if len(entry) != 3:
        raise ValueError(f"expected actions of (kind, stage, micro_batch), found {entry}")
    return entry[0], entry[1], entry[2]


def every_action_once(size: Size, lists: Lists) -> Iterator[tuple[bool, str, str, int | None]]:
    """Each list has the forward and the backward of each micro-batch on the rank's stages, and no more."""
    for rank, actions in enumerate(lists):
        own = range(rank, size.stages, size.ranks)
        kinds: tuple[Kind, ...] = ("forward", "backward")
        wanted = Counter(Action(k, s, i) for k in kinds for s in own for i in range(size.micro_batches))
        seen = Counter(actions)
        missing, extra = wanted - seen, seen - wanted
        said = [f"{next(iter(missing))} is missing"] if missing else []
        said += [f"{next(iter(extra))} is one too many"] if extra else []
        yield not said, f"each of {sum(wanted.values())} actions once", "; ".join(said), rank


def runs_to_its_end(size: Size, lists: Lists) -> Iterator[tuple[bool, str, str, int | None]]:
    """A dry run reaches every action of every list, and the lists are not short."""
    blocked = dry_run(lists)
    enough = sum(map(len, lists)) >= 2 * size.stages * size.micro_batches
    said = "; ".join(map(str, blocked)) or f"lists of {[len(a) for a in lists]} actions"
    yield not blocked and enough, "no rank blocked, and no action missing", said, None


def forwards_first(size: Size, lists: Lists) -> Iterator[tuple[bool, str, str, int | None]]:
    """No forward stands behind a backward."""
    for rank, actions in enumerate(lists):
        first = next((i for i, a in enumerate(actions) if a.kind == "backward"), len(actions))
        late = next((a for a in actions[first:] if a.kind == "forward"), None)
        forwards = sum(a.kind == "forward" for a in actions)
        right = late is None and forwards == size.micro_batches
        said = f"{late} after {actions[first]}" if late else f"{forwards} forwards"
        yield right, f"{size.micro_batches} forwards, then the backwards", said, rank


def takes_as_long_as(size: Size, lists: Lists) -> Iterator[tuple[bool, str, str, int | None]]:
    """m(t_f+t_b) of work and p-1 times (t_f+t_b)/v of bubble (Narayanan SC21, section 2.2)."""
    for forward, backward in FORWARD_AND_BACKWARD:
        played = simulate(lists, Costs(forward / size.chunks, backward / size.chunks))
        both = forward + backward
        wanted = size.micro_batches * both + (size.ranks - 1) * both / size.chunks
        said = f"{played.makespan:g}"
        what = f"{wanted:g} from first to last when forward takes {forward:g} and backward {backward:g}"
        yield abs(played.makespan - wanted) < 1e-9 * wanted, what, said, None


def holds_at_most(limit: Callable[[Size, int], int]) -> Rule:
    """No rank ever has more forwards open than `limit(size, rank)`."""

    def rule(size: Size, lists: Lists) -> Iterator[tuple[bool, str, str, int | None]]:
        for rank, peak in enumerate(_peaks(size, simulate(lists))):
            most = limit(size, rank)
            yield 1 <= peak <= most, f"at most {most} forwards waiting for their backward", str(peak), rank

    return rule


def _peaks(size: Size, played: Simulation) -> list[int]:
    return [played.peak_in_flight(rank) for rank in range(len(played.starts))]


def schedule_exercise(
    exercise_id: str,
    title: str,
    names: tuple[str, ...],
    call: Call,
    rules: Mapping[str, Rule],
    properties: Iterable[Property],
    cases: Callable[[int], list[Case]],
    builds_on: tuple[str, ...] = (),
) -> Exercise:
    """An exercise that asks for a function from a rank to its list of actions."""
    return Exercise(
        exercise_id,
        title,
        names,
        tuple(properties),
        cases,
        lambda case, generator: {},
        ask_for_lists(call),
        judge_lists(rules),
        builds_on=builds_on,
    )
