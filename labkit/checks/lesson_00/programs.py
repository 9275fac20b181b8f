"""What three programs must show once they no longer deadlock: the same values, by the same kind of calls."""

from __future__ import annotations

from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Exercise, Property, every
from labkit.checks.lesson_00.messages import each_call
from labkit.checks.lesson_00.program_judges import (
    FROM_THE_LEFT,
    MEAN_OF_ALL,
    ROW_AND_COLUMN,
    one_call_each,
    one_call_where_others_are,
    one_message,
    same_small_calls,
    small_calls,
)
from labkit.checks.lesson_00.program_runs import GRID, LOSS, PASS


def pass_case(ranks: int, shape: list[int], kind: str, seed: int, **params: Any) -> Case:
    """A case for pass_right. params: groups, dtype ("float64"), again and calls (`program_runs.called`)."""
    size = "x".join(map(str, shape)) or "one number"
    name = f"pass_right of {size}{_in_dtype(params)}" + (" in groups" if "groups" in params else "")
    return Case(name, ranks, {"shape": shape, **params}, seed, kind=kind)


def loss_case(samples: list[int], kind: str, seed: int, **params: Any) -> Case:
    """A case for mean_loss: how many samples each rank has. params: groups, dtype ("float64"), first (what
    all losses of rank 0 are, as a text), again and calls (`program_runs.called`).
    """
    name = f"mean_loss of {', '.join(map(str, samples))} samples{_in_dtype(params)}"
    name += " in groups" if "groups" in params else ""
    name += f", some of them {params['first']}" if "first" in params else ""
    return Case(name, len(samples), {"samples": samples, **params}, seed, kind=kind)


def grid_case(rows: int, columns: int, kind: str, seed: int, **params: Any) -> Case:
    """A case for row_and_column_sums: the grid of ranks. params: dtype ("float64"), again
    and calls (`program_runs.called`).
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
            {"pass": each_call("calls", one_message)},
        ),
        Property(
            "pass-right-any-group",
            "robustness",
            1,
            "pass_right works with an odd number of ranks, in a subgroup, with megabytes, with one integer,"
            " and alone",
            "the repair relies on a rank's number (odd ones receive first) where the numbers do not"
            " alternate, or a lone rank sends to itself",
            {"pass-any-group": every(FROM_THE_LEFT, each_call("calls", one_message))},
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
            {"loss": each_call("calls", same_small_calls)},
            {"loss-none": each_call("calls", small_calls)},
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
            {"grid": each_call("calls", one_call_each)},
            {"grid-shapes": each_call("calls", one_call_where_others_are)},
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
