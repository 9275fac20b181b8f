"""What the values and the calls of the three programs must be."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge, Run, every
from labkit.checks.lesson_00.messages import collectives, exactly
from labkit.checks.lesson_00.program_runs import GRID, LOSS, PASS, columns_of, losses_of, rows_of
from labkit.checks.shared.beside import all_awaited, on_each, same
from labkit.checks.shared.places import place_of

MOST_LOSS_BYTES = 64  # of all the all-reduces of mean_loss: a sum and a count need 16


def _and_nothing_changed(run: Run, judge: Judge) -> Judge:
    """That judge, whether x is as it was handed over, and what an earlier call gave for zeros as it was."""

    def kept(evidence: Evidence, answer: RankAnswer) -> Finding:
        given = run.hand(evidence.case, evidence.inputs, answer.rank)["x"]
        return same("x as it was handed over", given, answer, "x after")

    return every(judge, on_each(kept), on_each(_first_stays))


def _first_stays(evidence: Evidence, answer: RankAnswer) -> Finding:
    earlier = answer.tensors.get("earlier")
    stays = (earlier is not None and not earlier.any()) or "again" not in evidence.case.params
    told = "zeros, which a call before this one gave for zeros, as they were"
    return Finding(bool(stays), told, "what was written to the second call's result", answer.rank)


def _from_left(evidence: Evidence, answer: RankAnswer) -> Finding:
    place = place_of(evidence.case, answer.rank)
    left = place.members[place.position - 1]
    return same(f"rank {left}'s tensor", evidence.inputs["x"][left], answer, "received")


def one_message(evidence: Evidence) -> Iterator[Finding]:
    """In pass_right each rank sends x to its right and receives as much from its left, and waits for both."""
    num_bytes = evidence.inputs["x"][0].nbytes
    for answer in evidence.answers:
        place = place_of(evidence.case, answer.rank)
        left, right = place.members[place.position - 1], place.members[(place.position + 1) % place.size]
        if place.size > 1:
            yield exactly(answer, [("send", num_bytes, right), ("recv", num_bytes, left)])
        yield all_awaited(answer)


def _mean(evidence: Evidence, answer: RankAnswer) -> Finding:
    members = place_of(evidence.case, answer.rank).members
    own = evidence.inputs["x"].split(evidence.case.params["samples"])
    losses = torch.cat([losses_of(evidence.case, own[rank], rank) for rank in members])
    mean = losses.double().mean().to(losses.dtype) if losses.numel() else losses.new_zeros(())
    if not mean.isfinite():
        return same(f"{mean.item()}, as a loss of rank 0 is", losses.new_ones(()), answer, "mean")
    return same(f"the mean of the group's {losses.numel()} losses, {mean.item():.6g}", mean, answer, "mean")


def same_small_calls(evidence: Evidence) -> Iterator[Finding]:
    """In mean_loss all ranks make the same all-reduces, of a few bytes."""
    first = _sizes(evidence.answers[0])
    for answer in evidence.answers:
        calls = _sizes(answer)
        few = 0 < sum(size for _, size in calls) <= MOST_LOSS_BYTES
        right = calls == first and few and all(op == "all_reduce" for op, _ in calls)
        seen = ", ".join(f"{op} of {size} bytes" for op, size in calls) or "no communication"
        wanted = f"the same all-reduces on every rank, of at most {MOST_LOSS_BYTES} bytes together"
        yield Finding(right, wanted, seen, answer.rank)


def small_calls(evidence: Evidence) -> Iterator[Finding]:
    """The same where a rank may be alone, and need not call anybody."""
    for answer in evidence.answers:
        calls = _sizes(answer)
        right = sum(size for _, size in calls) <= MOST_LOSS_BYTES and all(
            op == "all_reduce" for op, _ in calls
        )
        seen = ", ".join(f"{op} of {size} bytes" for op, size in calls)
        yield Finding(right, f"all-reduces of at most {MOST_LOSS_BYTES} bytes together", seen, answer.rank)


def _sizes(answer: RankAnswer) -> list[tuple[str, int]]:
    return [(c["op"], c["num_bytes"]) for c in collectives(answer)]


def _sums(evidence: Evidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        row, column = divmod(answer.rank, evidence.case.params["columns"])
        for name, members in (
            ("row", rows_of(evidence.case)[row]),
            ("column", columns_of(evidence.case)[column]),
        ):
            drawn = evidence.inputs["x"][members]
            total = drawn.sum(0, dtype=drawn.dtype)
            yield same(f"the sum over the {name}, ranks {members}", total, answer, name)


def one_call_each(evidence: Evidence) -> Iterator[Finding]:
    """One all-reduce of x's bytes in each group, in the same order everywhere."""
    num_bytes = evidence.inputs["x"][0].nbytes
    for answer in evidence.answers:
        order, calls = _order(evidence.case, answer), collectives(answer)
        whole = all(c["op"] == "all_reduce" and c["num_bytes"] == num_bytes for c in calls)
        seen = ", ".join(
            f"{c['op']} of {c['num_bytes']:,} bytes in {kind}" for c, kind in zip(calls, order, strict=True)
        )
        right = whole and sorted(order) == ["column", "row"]
        wanted = f"one all_reduce of {num_bytes:,} bytes in the row and one in the column"
        yield Finding(right, wanted, seen or "no communication", answer.rank)
    yield _same_order(evidence)


def _same_order(evidence: Evidence) -> Finding:
    """Rows first everywhere or columns first everywhere."""
    orders = {tuple(_order(evidence.case, answer)) for answer in evidence.answers}
    seen = " but ".join(f"{' then '.join(order)} on some" for order in sorted(orders))
    return Finding(len(orders) == 1, "the same order on every rank", seen)


def one_call_where_others_are(evidence: Evidence) -> Iterator[Finding]:
    """The same on any grid: in a row or a column of one rank there is nobody to call."""
    case, num_bytes = evidence.case, evidence.inputs["x"][0].nbytes
    for answer in evidence.answers:
        row, column = divmod(answer.rank, case.params["columns"])
        groups = [tuple(rows_of(case)[row]), tuple(columns_of(case)[column])]
        wanted = sorted(("all_reduce", num_bytes, group) for group in groups if len(group) > 1)
        calls = [(c["op"], c["num_bytes"], tuple(c["group"])) for c in collectives(answer)]
        seen = sorted(call for call in calls if len(call[2]) > 1)
        told = f"one all_reduce of {num_bytes:,} bytes in each of the groups {[list(g) for *_, g in wanted]}"
        found = ", ".join(f"{op} of {size:,} bytes in {list(group)}" for op, size, group in seen)
        yield Finding(seen == wanted, told, found or "no communication", answer.rank)
    if min(case.params["rows"], case.params["columns"]) > 1:
        yield _same_order(evidence)


def _order(case: Case, answer: RankAnswer) -> list[str]:
    """Which of its groups each of a rank's calls was made in."""
    row, column = divmod(answer.rank, case.params["columns"])
    kinds = {tuple(rows_of(case)[row]): "row", tuple(columns_of(case)[column]): "column"}
    return [kinds.get(tuple(c["group"]), "another group") for c in collectives(answer)]


FROM_THE_LEFT = _and_nothing_changed(PASS, on_each(_from_left))
MEAN_OF_ALL = _and_nothing_changed(LOSS, on_each(_mean))
ROW_AND_COLUMN = _and_nothing_changed(GRID, _sums)
