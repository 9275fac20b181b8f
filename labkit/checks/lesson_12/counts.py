"""Whether ranks learn from each other how many rows come, in one message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_are, same
from labkit.checks.shared.company import in_company
from labkit.checks.shared.places import place_of

COUNT_BYTES = (8, 4)  # of a number of rows: int64, or whoever asks for less
TABLE = "from each rank (row) the number of rows for each own expert (column)"


def tell_counts(rank: Rank, group: Any) -> None:
    """Answers table, "first table", of an earlier call and read after this one, and, as they were handed
    over, kept. Recordings counts, of each call.
    """
    counts = rank.inputs["counts"].clone()
    with rank.recording("counts"):
        first = rank.student.exchange_counts(counts.flip(0), group)
    with rank.recording("counts"):
        table = rank.student.exchange_counts(counts, group)
    rank.answer("table", table)
    rank.answer("first table", first)
    rank.answer("kept", counts)


# -- judges


def _table_of(evidence: Evidence, answer: RankAnswer, counts: Callable[[Tensor], Tensor]) -> Tensor:
    """[members, local]: of the counts that are made of those that were drawn for a rank."""
    place = place_of(evidence.case, answer.rank)
    local = evidence.case.params["local"]
    own = slice(place.position * local, (place.position + 1) * local)
    return torch.stack([counts(evidence.inputs[f"counts.{rank}"])[own] for rank in place.members])


def has_table(evidence: Evidence) -> Iterator[Finding]:
    """What a rank learns from the others."""
    for answer in evidence.answers:
        yield same(TABLE, _table_of(evidence, answer, lambda counts: counts), answer, "table")


def keeps_first_table(evidence: Evidence) -> Iterator[Finding]:
    """What an earlier call gave is what it was."""
    for answer in evidence.answers:
        expected = _table_of(evidence, answer, lambda counts: counts.flip(0))
        yield same(f"{TABLE}, read after another call", expected, answer, "first table")


def keeps_counts(evidence: Evidence) -> Iterator[Finding]:
    """So are counts that were handed over."""
    for answer in evidence.answers:
        counts = evidence.inputs[f"counts.{answer.rank}"]
        yield same("the counts that were handed over, as they were", counts, answer, "kept")


def one_message_of_counts(evidence: Evidence) -> Iterator[Finding]:
    """As many whole numbers as there are experts, as wide as they were handed over or not: each time."""
    for answer in in_company(evidence):
        numbers = len(evidence.inputs[f"counts.{answer.rank}"])
        for time in ("counts", *answer.earlier("counts")):
            found = [calls_are(time, [("all_to_all", numbers * width)], answer) for width in COUNT_BYTES]
            yield next((finding for finding in found if finding.passed), found[0])
