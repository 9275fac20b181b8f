"""The messages of a job, step by step, as a picture: ranks on a circle, an arrow a message."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from labkit.record import Collective
from labkit.show.style import GREEN, INK, NOTEBOOK_WIDTH, PALE, Picture, drawing_board, rank_color
from labkit.show.timeline import HasRecord, expect_job
from labkit.theory.units import binary_text

if TYPE_CHECKING:
    from labkit.record.marked import Carried

Contents = Mapping[tuple[int, int], "Carried | None"]  # (rank, which of its messages) -> what it held
NODE = 0.24  # radius of a rank's disc; the ranks stand on a circle of radius 1
SQUARE = 0.15  # side of the square that stands for one rank's contribution


def draw_steps(
    job: HasRecord, row_titles: Sequence[str] = (), contents: Sequence[Sequence[Carried | None]] | None = None
) -> Picture:
    """One small circle a step, with an arrow for each message that was under way in it.

    Messages share a step when none of them had to wait for another: a rank sends one at a time, receives one
    at a time, and sends after what it had received before. Empty messages are left out.
    row_titles: with one or more, the steps are divided evenly over as many rows.
    contents: what each rank's messages held (labkit.record.marked): a letter for the part, and a square in a
        rank's colour for each rank whose numbers are in it.
    """
    expect_job(job, "draw_steps(job)")
    steps = steps_of(job)
    held = {(rank, k): c for rank, row in enumerate(contents or ()) for k, c in enumerate(row)}
    number = {id(c): (c.rank, k) for calls in _by_rank(job, "send").values() for k, c in enumerate(calls)}
    rows = max(1, len(row_titles)) if steps else 1
    columns = max(1, math.ceil(len(steps) / rows))
    side = min(2.6, NOTEBOOK_WIDTH / columns)
    figure = Figure(figsize=(side * columns, rows * (side + 0.2)), dpi=100, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for index, axes in enumerate(grid.flat):
        drawing_board(axes)
        if index < len(steps):
            _draw_step(axes, index, steps[index], job.ranks)
            for message in steps[index]:
                _draw_content(axes, message, job.ranks, held.get(number[id(message)]))
    for row, title in enumerate(row_titles if steps else ()):
        grid[row][0].text(-1.6, 0, title, rotation=90, va="center", ha="right", fontsize=9, color=INK)
    if not steps:
        grid[0][0].text(0.5, 0.5, "no messages were sent", ha="center", va="center", fontsize=10)
    return Picture(figure, _in_words(steps, held, number))


def steps_of(job: HasRecord) -> list[list[Collective]]:
    """The messages of each step, as their sends, in rank order."""
    sends, receives = _by_rank(job, "send"), _by_rank(job, "recv")
    pairs = _matched(sends, receives)
    before: dict[int, list[int]] = defaultdict(list)  # of a message, those that came first; both by id
    for calls in (*sends.values(), *receives.values()):
        for earlier, later in pairwise(calls):
            before[pairs[id(later)]].append(pairs[id(earlier)])
    for rank, calls in sends.items():
        for send in calls:
            had = [r for r in receives.get(rank, []) if r.end is not None and r.end <= send.start]
            before[pairs[id(send)]] += [pairs[id(r)] for r in had[-1:]]
    step = _longest_paths([id(send) for calls in sends.values() for send in calls], before)
    steps: dict[int, list[Collective]] = defaultdict(list)
    for _, calls in sorted(sends.items()):
        for send in calls:
            steps[step[id(send)]].append(send)
    return [steps[k] for k in sorted(steps)]


def _by_rank(job: HasRecord, op: str) -> dict[int, list[Collective]]:
    """Each rank's messages with something in them, in the order of posting."""
    found: dict[int, list[Collective]] = defaultdict(list)
    for call in sorted(job.collectives, key=lambda c: (c.rank, c.order)):
        if call.op == op and call.num_bytes > 0 and call.peer is not None:
            found[call.rank].append(call)
    return found


def _matched(
    sends: Mapping[int, Sequence[Collective]], receives: Mapping[int, Sequence[Collective]]
) -> dict[int, int]:
    """id of a send or a receive -> id of the send: between two ranks, messages arrive in order."""
    waiting: dict[tuple[int, int], list[Collective]] = defaultdict(list)
    for rank, calls in receives.items():
        for call in calls:
            assert call.peer is not None
            waiting[call.peer, rank].append(call)
    pairs = {id(call): id(call) for calls in (*sends.values(), *receives.values()) for call in calls}
    for rank, calls in sends.items():
        taken: dict[int, int] = defaultdict(int)
        for send in calls:
            assert send.peer is not None
            arrivals = waiting[rank, send.peer]
            if taken[send.peer] < len(arrivals):
                pairs[id(arrivals[taken[send.peer]])] = id(send)
            taken[send.peer] += 1
    return pairs


def _longest_paths(messages: Sequence[int], before: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """For each message, how many must come one after the other before it."""
    step = dict.fromkeys(messages, 0)
    for _ in messages:
        moved = {m: 1 + max(step.get(e, -1) for e in before[m]) for m in messages if before.get(m)}
        if all(step[m] >= k for m, k in moved.items()):
            break
        step.update(moved)
    return step


def _draw_step(axes: Axes, index: int, messages: Sequence[Collective], ranks: int) -> None:
    axes.set_xlim(-1.5, 1.5)
    axes.set_ylim(-1.3, 1.3)
    sizes = sorted({binary_text(message.num_bytes) for message in messages})
    each = f"{' or '.join(sizes)}{' each' if len(messages) > 1 else ''}"
    axes.set_title(f"step {index + 1}: {each}", fontsize=9, color=INK, pad=2)
    for rank in range(ranks):
        place = _place(rank, ranks)
        axes.add_patch(Circle(place, NODE, facecolor=rank_color(rank), edgecolor=INK, zorder=3))
        axes.text(*place, str(rank), ha="center", va="center", fontsize=9, zorder=4)
    for message in messages:
        axes.add_patch(_arrow(message, ranks))


def _arrow(message: Collective, ranks: int) -> FancyArrowPatch:
    assert message.peer is not None
    return FancyArrowPatch(
        _place(message.rank, ranks),
        _place(message.peer, ranks),
        connectionstyle="arc3,rad=0.22",
        arrowstyle="-|>",
        mutation_scale=11,
        shrinkA=11,
        shrinkB=12,
        color=GREEN,
        linewidth=1.8,
    )


def _draw_content(axes: Axes, message: Collective, ranks: int, held: Carried | None) -> None:
    """Beside the arrow, the part's letter, and a square for each rank that is in the sum."""
    if held is None:
        return
    assert message.peer is not None
    (x0, y0), (x1, y1) = _place(message.rank, ranks), _place(message.peer, ranks)
    x, y = 1.42 * (x0 + x1) / 2, 1.42 * (y0 + y1) / 2
    left, low = x - SQUARE * ranks / 2, y - SQUARE
    axes.text(x, y + 0.15, chr(ord("A") + held.part), ha="center", va="center", fontsize=8, color=INK)
    for rank in range(ranks):
        color = rank_color(rank) if rank in held.ranks else PALE
        corner = (left + SQUARE * rank, low)
        axes.add_patch(Rectangle(corner, SQUARE, SQUARE, facecolor=color, edgecolor="white", linewidth=0.5))


def _place(rank: int, ranks: int) -> tuple[float, float]:
    """Rank 0 is at the top, the others follow clockwise."""
    angle = math.pi / 2 - 2 * math.pi * rank / ranks
    return math.cos(angle), math.sin(angle)


def _in_words(
    steps: Sequence[Sequence[Collective]], held: Contents, number: Mapping[int, tuple[int, int]]
) -> str:
    told = [
        f"step {index}: " + ", ".join(_message_in_words(m, held.get(number[id(m)])) for m in messages)
        for index, messages in enumerate(steps, 1)
    ]
    return "Messages by step. " + "; ".join(told or ["none"]) + "."


def _message_in_words(message: Collective, held: Carried | None) -> str:
    what = "" if held is None else f" (part {chr(ord('A') + held.part)} of ranks {held.ranks})"
    return f"rank {message.rank} to {message.peer}, {binary_text(message.num_bytes)}{what}"
