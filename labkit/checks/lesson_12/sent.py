"""Whether rows are sent as they are, each time, and what stays of them when they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import calls_are, nbytes
from labkit.checks.shared.company import in_company
from labkit.checks.shared.held import bytes_kept

Way = tuple[str, str]  # what is sent, and the splits by which it goes: names of inputs
THERE: Way = ("rows", "sent")
BACK: Way = ("grad", "received")
MANY = 2**18  # bytes of rows that are many: what a call needs besides is much less


def sends(phase: str, *ways: Way) -> Judge:
    """A judge of each recording of a phase: one all-to-all for each of the ways, of the rank's own rows and
    no more than these, and to each rank those that are for it.
    """

    def find(evidence: Evidence) -> Iterator[Finding]:
        for answer in in_company(evidence):
            for time in (phase, *answer.earlier(phase)):
                own = [nbytes(evidence.inputs[f"{what}.{answer.rank}"]) for what, _ in ways]
                yield calls_are(time, [("all_to_all", num_bytes) for num_bytes in own], answer)
                yield _to_each(evidence, answer, time, [splits for _, splits in ways])

    return find


def _to_each(evidence: Evidence, answer: RankAnswer, phase: str, splits: Sequence[str]) -> Finding:
    """Bytes for each rank are those of its rows."""
    size = evidence.case.params["hidden"] * evidence.inputs["rows.0"].element_size()
    numbers = [evidence.inputs[f"{name}.{answer.rank}"].tolist() for name in splits]
    expected = [[int(rows) * size for rows in each] for each in numbers]
    seen = [list(c["sent"]) for c in answer.collectives.get(phase, []) if c["source"] == "python"]
    told = f"{phase}: for each rank {' and '.join(map(str, expected))} bytes"
    return Finding(sorted(seen) == sorted(expected), told, f"{seen}", answer.rank)


def tell_left_of_many(rank: Rank, group: Any, sent: list[int], received: list[int]) -> None:
    """Facts many: bytes of rows, so many times those that the splits ask for; "left of many": those that a
    call, and one without a graph, leave behind when what went in and what came out have been let go.
    """
    width, dtype = rank.inputs["rows"].shape[1], rank.inputs["rows"].dtype
    times = MANY // (dtype.itemsize * width) + 1
    sent, received = ([times * rows for rows in splits] for splits in (sent, received))
    leaf = torch.ones(sum(sent), width, dtype=dtype, device=rank.device, requires_grad=True)
    rank.fact("many", nbytes(leaf))

    def call() -> Tensor:
        with torch.no_grad():
            rank.student.AllToAll.apply(leaf * 2.0, sent, received, group)
        out: Tensor = rank.student.AllToAll.apply(leaf * 2.0, sent, received, group)
        return out.sum()

    rank.fact("left of many", bytes_kept(partial(partial, call)))


def keeps_nothing_of_many(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Of what `tell_left_of_many` told."""
    many, left = answer.facts["many"], answer.facts["left of many"]
    told = f"nothing kept for backward but the splits (rows have {many:,} bytes)"
    return Finding(left < MANY // 4, told, f"{left:,} bytes", answer.rank)
