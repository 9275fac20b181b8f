"""What each rank does with the three programs: hands them its tensors, and answers what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Run, own_entry
from labkit.checks.rank import Rank
from labkit.checks.shared.again import called_before
from labkit.checks.shared.places import enter_group
from labkit.checks.shared.split import dtype_of


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


def losses_of(case: Case, x: Tensor, rank: int) -> Tensor:
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


def called(rank: Rank, tensors: list[Tensor], call: Callable[[], Any]) -> tuple[Any, Any]:
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
    earlier, received = called(rank, [x], lambda: rank.student.pass_right(x, group))
    rank.answer("received", received)
    rank.answer("earlier", earlier)
    received.zero_()  # the caller's now: x must not share its memory


def _mean_loss(rank: Rank, x: Tensor) -> None:
    group = enter_group(rank)
    losses = losses_of(rank.case, x, rank.rank)
    earlier, mean = called(rank, [losses], lambda: rank.student.mean_loss(losses, group))
    rank.answer("mean", _told(rank.case, mean))
    mean.fill_(1.0)  # the caller's now: an earlier mean must not share its memory
    rank.answer("earlier", earlier)


def _told(case: Case, mean: Tensor) -> Tensor:
    """The mean; where that cannot be finite, 1 if it is what it must be and 0 if not."""
    first = mean.new_tensor(float(case.params.get("first", 0)))
    return mean if first.isfinite() else torch.isclose(mean, first, equal_nan=True).to(mean.dtype)


def _grid_sums(rank: Rank, x: Tensor) -> None:
    rows, columns = rows_of(rank.case), columns_of(rank.case)
    row_groups = [dist.new_group(members) for members in rows]
    column_groups = [dist.new_group(members) for members in columns]
    row, column = divmod(rank.rank, rank.params["columns"])
    groups = row_groups[row], column_groups[column]
    earlier, sums = called(rank, [x], lambda: rank.student.row_and_column_sums(x, *groups))
    rank.answer("earlier", torch.stack(earlier) if earlier else None)
    for name, total in zip(("row", "column"), sums, strict=True):
        rank.answer(name, total)
        total.zero_()  # the caller's now: neither x nor the other sum may share its memory


def rows_of(case: Case) -> list[list[int]]:
    """The ranks of each row of the grid."""
    width = case.params["columns"]
    return [list(range(row * width, (row + 1) * width)) for row in range(case.params["rows"])]


def columns_of(case: Case) -> list[list[int]]:
    """The ranks of each of its columns."""
    return [list(column) for column in zip(*rows_of(case), strict=True)]


PASS = Run(_keeping_x(_pass_right), _drawn(lambda case: (case.ranks, *case.params["shape"])), own_entry)
LOSS = Run(_keeping_x(_mean_loss), _drawn(lambda case: (sum(case.params["samples"]),)), _own_losses)
GRID = Run(_keeping_x(_grid_sums), _drawn(lambda case: (case.ranks, 3, 5)), own_entry)
