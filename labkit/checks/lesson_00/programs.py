"""What three programs must show once they no longer deadlock: the same values, by the same kind of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every, own_entry
from labkit.checks.lesson_00.messages import collectives, each_call, exactly
from labkit.checks.rank import Rank
from labkit.checks.shared.again import called_before
from labkit.checks.shared.beside import all_awaited, on_each, same
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.split import dtype_of

MOST_LOSS_BYTES = 64  # of all the all-reduces of mean_loss: a sum and a count need 16


def pass_case(ranks: int, shape: list[int], kind: str, seed: int, **params: Any) -> Case:
    """A case for pass_right. params: groups, dtype ("float64"), again and calls (`_called`)."""
    size = "x".join(map(str, shape)) or "one number"
    name = f"pass_right of {size}{_in_dtype(params)}" + (" in groups" if "groups" in params else "")
    return Case(name, ranks, {"shape": shape, **params}, seed, kind=kind)


def loss_case(samples: list[int], kind: str, seed: int, **params: Any) -> Case:
    """A case for mean_loss: how many samples each rank has. params: groups, dtype ("float64"), first (what
    all losses of rank 0 are, as a text), again and calls (`_called`).
    """
    name = f"mean_loss of {', '.join(map(str, samples))} samples{_in_dtype(params)}"
    name += " in groups" if "groups" in params else ""
    name += f", some of them {params['first']}" if "first" in params else ""
    return Case(name, len(samples), {"samples": samples, **params}, seed, kind=kind)


def grid_case(rows: int, columns: int, kind: str, seed: int, **params: Any) -> Case:
    """A case for row_and_column_sums: the grid of ranks. params: dtype ("float64"), again
    and calls (`_called`).
    """
    name = f"row_and_column_sums, {rows} x {columns} grid{_in_dtype(params)}"
    return Case(name, rows * columns, {"rows": rows, "columns": columns, **params}, seed, kind=kind)


def _in_dtype(params: dict[str, Any]) -> str:
    return f" in {params['dtype']}" if "dtype" in params else ""


def _cases(seed: int) -> list[Case]:
    """Each program has world sizes of its own, so that one which still hangs does not use up the others'
    tries.
    """
    return [
        pass_case(5, [3, 4], "pass", seed, again=True),
        pass_case(2, [300_000], "pass-any-group", seed),
        loss_case([4, 0, 7], "loss", seed, again=True),
        loss_case([2, 1], "loss", seed, first="nan"),
        loss_case([600, 200], "loss", seed, first="1", dtype="bfloat16"),
        loss_case([0, 0, 0], "loss-none", seed, again=True),
        grid_case(2, 2, "grid", seed, again=True),
        grid_case(2, 3, "grid-shapes", seed, dtype="int64"),
        pass_case(1, [2], "pass-any-group", seed),
        pass_case(2, [], "pass-any-group", seed, dtype="int64"),
        loss_case([1], "loss-none", seed),
        loss_case([70_000, 1, 0, 0], "loss-none", seed, groups=[[0, 2], [1, 3]], first="2", dtype="float16"),
        grid_case(1, 1, "grid-shapes", seed),
    ]


# -- on a rank


def _drawn(shape: Callable[[Case], tuple[int, ...]]) -> Callable[[Case, torch.Generator], Inputs]:
    """Draws x in the shape and dtype of a case. Integers are so large that no float type holds them."""

    def draw(case: Case, generator: torch.Generator) -> Inputs:
        dtype = dtype_of(case)
        if dtype.is_floating_point:
            return {"x": torch.randn(shape(case), generator=generator, dtype=torch.float64).to(dtype)}
        largest = torch.iinfo(dtype).max // case.ranks
        return {"x": torch.randint(largest // 2, largest, shape(case), generator=generator, dtype=dtype)}

    return draw


def _own_losses(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """All ranks' losses stand in one row."""
    return {"x": inputs["x"].split(case.params["samples"])[rank]}


def _losses(case: Case, x: Tensor, rank: int) -> Tensor:
    """What a rank's losses are, of which x was drawn."""
    first = rank == 0 and "first" in case.params
    return torch.full_like(x, float(case.params["first"])) if first else x


def _keeping_x(program: Callable[[Rank, Tensor], None]) -> Callable[[Rank], None]:
    """Runs a program on x; also answers x after."""

    def on_rank(rank: Rank) -> None:
        x = rank.inputs["x"].clone()
        program(rank, x)
        rank.answer("x after", x)

    return on_rank


def _called(rank: Rank, tensors: list[Tensor], call: Callable[[], Any]) -> tuple[Any, Any]:
    """What an earlier call gave (see `called_before`), and what the last one does. Recordings: calls, of
    each, and of so many between them as the case says.
    """

    def recorded() -> Any:
        with rank.recording("calls"):
            return call()

    earlier = called_before(rank, tensors, recorded)
    for _ in range(rank.params.get("calls", 0)):
        recorded()
    return earlier, recorded()


def _pass_right(rank: Rank, x: Tensor) -> None:
    group = enter_group(rank)
    earlier, received = _called(rank, [x], lambda: rank.student.pass_right(x, group))
    rank.answer("received", received)
    rank.answer("earlier", earlier)
    received.zero_()  # the caller's now: x must not share its memory


def _mean_loss(rank: Rank, x: Tensor) -> None:
    group = enter_group(rank)
    losses = _losses(rank.case, x, rank.rank)
    earlier, mean = _called(rank, [losses], lambda: rank.student.mean_loss(losses, group))
    rank.answer("mean", _told(rank.case, mean))
    mean.fill_(1.0)  # the caller's now: an earlier mean must not share its memory
    rank.answer("earlier", earlier)


def _told(case: Case, mean: Tensor) -> Tensor:
    """The mean; where that cannot be finite, 1 if it is what it must be and 0 if not."""
    first = mean.new_tensor(float(case.params.get("first", 0)))
    return mean if first.isfinite() else torch.isclose(mean, first, equal_nan=True).to(mean.dtype)


def _grid_sums(rank: Rank, x: Tensor) -> None:
    rows, columns = _rows(rank.case), _columns(rank.case)
    row_groups = [dist.new_group(members) for members in rows]
    column_groups = [dist.new_group(members) for members in columns]
    row, column = divmod(rank.rank, rank.params["columns"])
    groups = row_groups[row], column_groups[column]
    earlier, sums = _called(rank, [x], lambda: rank.student.row_and_column_sums(x, *groups))
    rank.answer("earlier", torch.stack(earlier) if earlier else None)
    for name, total in zip(("row", "column"), sums, strict=True):
        rank.answer(name, total)
        total.zero_()  # the caller's now: neither x nor the other sum may share its memory


def _rows(case: Case) -> list[list[int]]:
    width = case.params["columns"]
    return [list(range(row * width, (row + 1) * width)) for row in range(case.params["rows"])]


def _columns(case: Case) -> list[list[int]]:
    return [list(column) for column in zip(*_rows(case), strict=True)]


PASS = Run(_keeping_x(_pass_right), _drawn(lambda case: (case.ranks, *case.params["shape"])), own_entry)
LOSS = Run(_keeping_x(_mean_loss), _drawn(lambda case: (sum(case.params["samples"]),)), _own_losses)
GRID = Run(_keeping_x(_grid_sums), _drawn(lambda case: (case.ranks, 3, 5)), own_entry)


# -- judges


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


def _one_message(evidence: Evidence) -> Iterator[Finding]:
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
    losses = torch.cat([_losses(evidence.case, own[rank], rank) for rank in members])
    mean = losses.double().mean().to(losses.dtype) if losses.numel() else losses.new_zeros(())
    if not mean.isfinite():
        return same(f"{mean.item()}, as a loss of rank 0 is", losses.new_ones(()), answer, "mean")
    return same(f"the mean of the group's {losses.numel()} losses, {mean.item():.6g}", mean, answer, "mean")


def _same_small_calls(evidence: Evidence) -> Iterator[Finding]:
    first = _sizes(evidence.answers[0])
    for answer in evidence.answers:
        calls = _sizes(answer)
        few = 0 < sum(size for _, size in calls) <= MOST_LOSS_BYTES
        right = calls == first and few and all(op == "all_reduce" for op, _ in calls)
        seen = ", ".join(f"{op} of {size} bytes" for op, size in calls) or "no communication"
        wanted = f"the same all-reduces on every rank, of at most {MOST_LOSS_BYTES} bytes together"
        yield Finding(right, wanted, seen, answer.rank)


def _small_calls(evidence: Evidence) -> Iterator[Finding]:
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
            ("row", _rows(evidence.case)[row]),
            ("column", _columns(evidence.case)[column]),
        ):
            drawn = evidence.inputs["x"][members]
            total = drawn.sum(0, dtype=drawn.dtype)
            yield same(f"the sum over the {name}, ranks {members}", total, answer, name)


def _one_call_each(evidence: Evidence) -> Iterator[Finding]:
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


def _one_call_where_others_are(evidence: Evidence) -> Iterator[Finding]:
    """The same on any grid: in a row or a column of one rank there is nobody to call."""
    case, num_bytes = evidence.case, evidence.inputs["x"][0].nbytes
    for answer in evidence.answers:
        row, column = divmod(answer.rank, case.params["columns"])
        groups = [tuple(_rows(case)[row]), tuple(_columns(case)[column])]
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
    kinds = {tuple(_rows(case)[row]): "row", tuple(_columns(case)[column]): "column"}
    return [kinds.get(tuple(c["group"]), "another group") for c in collectives(answer)]


FROM_THE_LEFT = _and_nothing_changed(PASS, on_each(_from_left))
MEAN_OF_ALL = _and_nothing_changed(LOSS, on_each(_mean))
ROW_AND_COLUMN = _and_nothing_changed(GRID, _sums)
EXERCISE = Exercise(
    "00.find-the-deadlock",
    "Find the deadlock",
    ("pass_right", "mean_loss", "row_and_column_sums"),
    {
        "pass": PASS,
        "pass-any-group": PASS,
        "loss": LOSS,
        "loss-none": LOSS,
        "grid": GRID,
        "grid-shapes": GRID,
    },
    _cases,
    (
        Property(
            "pass-right-values",
            "numbers",
            1,
            "pass_right returns the left neighbour's tensor",
            "the tensor comes from the wrong side",
            {"pass": FROM_THE_LEFT},
        ),
        Property(
            "pass-right-messages",
            "mechanism",
            1,
            "pass_right sends one message to the right and receives one from the left, and waits for both",
            "a collective moves everyone's tensor to everyone, the message makes a detour, or nobody"
            " waits for the send",
            {"pass": each_call("calls", _one_message)},
        ),
        Property(
            "pass-right-any-group",
            "robustness",
            1,
            "pass_right works with an odd number of ranks, in a subgroup, with megabytes, with one integer,"
            " and alone",
            "the repair relies on a rank's number (odd ones receive first) where the numbers do not"
            " alternate, or a lone rank sends to itself",
            {"pass-any-group": every(FROM_THE_LEFT, each_call("calls", _one_message))},
        ),
        Property(
            "mean-loss-values",
            "numbers",
            1,
            "mean_loss returns the mean over all samples of all ranks, on every rank; nan if one is",
            "the ranks without samples return early, or the mean of the ranks' means is taken",
            {"loss": MEAN_OF_ALL},
        ),
        Property(
            "mean-loss-calls",
            "mechanism",
            1,
            "In mean_loss every rank makes the same all-reduces, of a few bytes",
            "a call stands in a branch that not all ranks take, or all losses are gathered to be averaged",
            {"loss": each_call("calls", _same_small_calls)},
            {"loss-none": each_call("calls", _small_calls)},
        ),
        Property(
            "mean-loss-no-samples",
            "robustness",
            1,
            "mean_loss is 0 when no rank has samples, and works in a subgroup, on one rank, and with more"
            " losses than their dtype can sum or count",
            "0 divided by 0, or losses of half precision are summed or counted in half precision",
            {"loss-none": MEAN_OF_ALL},
        ),
        Property(
            "grid-sums-values",
            "numbers",
            1,
            "row_and_column_sums returns the sum over the row and the sum over the column, and leaves x"
            " alone",
            "x is summed in place over the row, and that sum goes into the column's",
            {"grid": ROW_AND_COLUMN},
        ),
        Property(
            "grid-sums-calls",
            "mechanism",
            1,
            "Each rank makes one all-reduce in each of its two groups, in the same order on every rank",
            "the order still depends on the rank",
            {"grid": each_call("calls", _one_call_each)},
            {"grid-shapes": each_call("calls", _one_call_where_others_are)},
        ),
        Property(
            "grid-sums-any-shape",
            "robustness",
            1,
            "row_and_column_sums works on grids that are not square, on one rank, and on integers",
            "the repair counts on 2 x 2 ranks",
            {"grid-shapes": ROW_AND_COLUMN},
        ),
    ),
)
