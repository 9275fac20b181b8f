"""What three programs must show once they no longer deadlock: the same values, by the same kind of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.lesson_00.messages import collectives, equal, exactly
from labkit.checks.old_form import Exercise, Finding, mechanism, numbers, robustness
from labkit.checks.rank import Rank
from labkit.checks.shared.places import enter_group, place_of

MOST_LOSS_BYTES = 64  # of all the all-reduces of mean_loss: a sum and a count need 16

PROPERTIES = (
    numbers(
        "pass-right-values",
        1,
        "pass_right returns the left neighbour's tensor",
        "the tensor comes from the wrong side",
    ),
    mechanism(
        "pass-right-messages",
        1,
        "pass_right sends one message to the right and receives one from the left",
        "a collective moves everyone's tensor to everyone, or the message makes a detour",
    ),
    robustness(
        "pass-right-any-group",
        1,
        "pass_right works with an odd number of ranks, in a subgroup, with megabytes, and alone",
        "the repair relies on a rank's number (odd ones receive first) where the numbers do not alternate, "
        "or a lone rank sends to itself",
    ),
    numbers(
        "mean-loss-values",
        1,
        "mean_loss returns the mean over all samples of all ranks, on every rank",
        "the ranks without samples return early, or the mean of the ranks' means is taken",
    ),
    mechanism(
        "mean-loss-calls",
        1,
        "In mean_loss every rank makes the same all-reduces, of a few bytes",
        "a call stands in a branch that not all ranks take, or all losses are gathered to be averaged",
    ),
    robustness(
        "mean-loss-no-samples",
        1,
        "mean_loss is 0 when no rank has samples, and works on one rank",
        "0 divided by 0",
    ),
    numbers(
        "grid-sums-values",
        1,
        "row_and_column_sums returns the sum over the row and the sum over the column, and leaves x alone",
        "x is summed in place over the row, and that sum goes into the column's",
    ),
    mechanism(
        "grid-sums-calls",
        1,
        "Each rank makes one all-reduce in each of its two groups, in the same order on every rank",
        "the order still depends on the rank",
    ),
    robustness(
        "grid-sums-any-shape",
        1,
        "row_and_column_sums works on grids that are not square, and on one rank",
        "the repair counts on 2 x 2 ranks",
    ),
)


def exercise() -> Exercise:
    """The exercise `00.find-the-deadlock`."""
    return Exercise(
        "00.find-the-deadlock",
        "Find the deadlock",
        ("pass_right", "mean_loss", "row_and_column_sums"),
        PROPERTIES,
        _cases,
        _inputs,
        _on_rank,
        _judge,
    )


def _cases(seed: int) -> list[Case]:
    """Each program has world sizes of its own, so that one which still hangs does not use up the others'
    tries.
    """
    return [
        pass_case(5, [3, 4], "pass-right-values", "pass-right-messages", seed=seed),
        pass_case(2, [300_000], "pass-right-any-group", seed=seed),
        loss_case([4, 0, 7], "mean-loss-values", "mean-loss-calls", seed=seed),
        loss_case([0, 0, 0], "mean-loss-no-samples", seed=seed),
        grid_case(2, 2, "grid-sums-values", "grid-sums-calls", seed=seed),
        grid_case(2, 3, "grid-sums-any-shape", seed=seed),
        pass_case(1, [2], "pass-right-any-group", seed=seed),
        loss_case([3], "mean-loss-no-samples", seed=seed),
        grid_case(1, 1, "grid-sums-any-shape", seed=seed),
    ]


def pass_case(ranks: int, shape: list[int], *properties: str, seed: int, **params: Any) -> Case:
    """A case for pass_right. params: groups."""
    name = f"pass_right of {'x'.join(map(str, shape))}" + (" in groups" if "groups" in params else "")
    return Case(name, ranks, {"program": "pass_right", "shape": shape, **params}, seed, properties)


def loss_case(samples: list[int], *properties: str, seed: int) -> Case:
    """A case for mean_loss: how many samples each rank has."""
    name = f"mean_loss of {', '.join(map(str, samples))} samples"
    return Case(name, len(samples), {"program": "mean_loss", "samples": samples}, seed, properties)


def grid_case(rows: int, columns: int, *properties: str, seed: int) -> Case:
    """A case for row_and_column_sums: the grid of ranks."""
    name = f"row_and_column_sums, {rows} x {columns} grid"
    params = {"program": "row_and_column_sums", "rows": rows, "columns": columns}
    return Case(name, rows * columns, params, seed, properties)


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """x: [ranks, *shape]; for mean_loss all ranks' losses in one row."""
    match case.params["program"]:
        case "pass_right":
            shape = (case.ranks, *case.params["shape"])
        case "mean_loss":
            shape = (sum(case.params["samples"]),)
        case _:
            shape = (case.ranks, 3, 5)
    return {"x": torch.randn(shape, generator=generator, dtype=torch.float64)}


def _own(case: Case, inputs: Inputs, rank: int) -> Tensor:
    """What one rank is handed."""
    if case.params["program"] == "mean_loss":
        return inputs["x"].split(case.params["samples"])[rank]
    return inputs["x"][rank]


def _on_rank(rank: Rank) -> None:
    run: dict[str, Callable[[Rank, Tensor], None]] = {
        "pass_right": _pass_right,
        "mean_loss": _mean_loss,
        "row_and_column_sums": _grid_sums,
    }
    x = _own(rank.case, rank.inputs, rank.rank).clone()
    run[rank.params["program"]](rank, x)
    rank.answer("x after", x)


def _pass_right(rank: Rank, x: Tensor) -> None:
    group = enter_group(rank)
    with rank.recording("calls"):
        received = rank.student.pass_right(x, group)
    rank.answer("received", received)


def _mean_loss(rank: Rank, x: Tensor) -> None:
    with rank.recording("calls"):
        mean = rank.student.mean_loss(x, rank.group)
    rank.answer("mean", torch.as_tensor(mean, dtype=torch.float64).reshape(()))


def _grid_sums(rank: Rank, x: Tensor) -> None:
    rows, columns = _rows(rank.case), _columns(rank.case)
    row_groups = [dist.new_group(members) for members in rows]
    column_groups = [dist.new_group(members) for members in columns]
    row, column = divmod(rank.rank, rank.params["columns"])
    with rank.recording("calls"):
        sums = rank.student.row_and_column_sums(x, row_groups[row], column_groups[column])
    rank.answer("row", sums[0])
    rank.answer("column", sums[1])


def _rows(case: Case) -> list[list[int]]:
    width = case.params["columns"]
    return [list(range(row * width, (row + 1) * width)) for row in range(case.params["rows"])]


def _columns(case: Case) -> list[list[int]]:
    return [list(column) for column in zip(*_rows(case), strict=True)]


def _judge(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    findings = {
        "pass_right": _judge_pass_right,
        "mean_loss": _judge_mean_loss,
        "row_and_column_sums": _judge_grid_sums,
    }[case.params["program"]]
    yield from findings(case, inputs, answers)
    for answer in answers:
        given = _own(case, inputs, answer.rank)
        yield equal(case.properties[0], "x as it was handed over", given, answer, "x after")


def _judge_pass_right(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    for answer in answers:
        place = place_of(case, answer.rank)
        left = place.members[place.position - 1]
        right = place.members[(place.position + 1) % place.size]
        x = _own(case, inputs, left)
        yield equal(case.properties[0], f"rank {left}'s tensor", x, answer, "received")
        if place.size > 1:
            calls = [("send", x.nbytes, right), ("recv", x.nbytes, left)]
            yield exactly(case.properties[-1], answer, calls)


def _judge_mean_loss(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    losses = inputs["x"]
    mean = losses.mean() if losses.numel() else losses.new_zeros(())
    first = [(c["op"], c["num_bytes"]) for c in collectives(answers[0])]
    for answer in answers:
        what = f"the mean of all {losses.numel()} losses, {mean.item():.6g}"
        yield equal(case.properties[0], what, mean, answer, "mean")
        if "mean-loss-calls" in case.properties:
            calls = [(c["op"], c["num_bytes"]) for c in collectives(answer)]
            few = 0 < sum(size for _, size in calls) <= MOST_LOSS_BYTES
            right = calls == first and few and all(op == "all_reduce" for op, _ in calls)
            seen = ", ".join(f"{op} of {size} bytes" for op, size in calls) or "no communication"
            wanted = f"the same all-reduces on every rank, of at most {MOST_LOSS_BYTES} bytes together"
            yield Finding("mean-loss-calls", right, wanted, seen, answer.rank)


def _judge_grid_sums(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    x = inputs["x"]
    for answer in answers:
        row, column = divmod(answer.rank, case.params["columns"])
        for name, members in (("row", _rows(case)[row]), ("column", _columns(case)[column])):
            total = x[members].sum(0)
            yield equal(case.properties[0], f"the sum over the {name}, ranks {members}", total, answer, name)
    if "grid-sums-calls" in case.properties:
        yield from _grid_calls(case, inputs, answers)


def _grid_calls(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """One all-reduce of x's bytes in each group, rows first everywhere or columns first everywhere."""
    orders = set()
    for answer in answers:
        row, column = divmod(answer.rank, case.params["columns"])
        kinds = {tuple(_rows(case)[row]): "row", tuple(_columns(case)[column]): "column"}
        calls = collectives(answer)
        order = [kinds.get(tuple(c["group"]), "another group") for c in calls]
        orders.add(tuple(order))
        whole = all(c["op"] == "all_reduce" and c["num_bytes"] == inputs["x"][0].nbytes for c in calls)
        seen = ", ".join(
            f"{c['op']} of {c['num_bytes']:,} bytes in {kind}" for c, kind in zip(calls, order, strict=True)
        )
        right = whole and sorted(order) == ["column", "row"]
        wanted = f"one all_reduce of {inputs['x'][0].nbytes:,} bytes in the row and one in the column"
        yield Finding("grid-sums-calls", right, wanted, seen or "no communication", answer.rank)
    seen = " but ".join(f"{' then '.join(order)} on some" for order in sorted(orders))
    yield Finding("grid-sums-calls", len(orders) == 1, "the same order on every rank", seen)
