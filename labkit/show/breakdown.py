"""Where each rank's time goes in a step: computing, communicating with nothing else to do, waiting, idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from matplotlib.patches import Patch

from labkit.record import Collective, Span
from labkit.record.matching import everybody_came
from labkit.show.style import INK, KINDS, ORANGE, Picture, new_figure
from labkit.show.timeline import expect_job
from labkit.theory.breakdown import StepShare, mean_share, step_share

PARTS = {
    "compute": ("compute", KINDS["compute"], ""),
    "exposed": ("exposed communication", KINDS["communication"], "///"),
    "waiting": ("waiting for a straggler", ORANGE, "\\\\\\"),
    "idle": ("idle", KINDS["idle"], ""),
}
_NOT_COMPUTING = ("communication", "idle", "step")


class HasRecord(Protocol):
    """What a breakdown needs of a job, or of what a session's cell did."""

    @property
    def ranks(self) -> int: ...
    @property
    def collectives(self) -> Sequence[Collective]: ...
    @property
    def spans(self) -> Sequence[Span]: ...


def shares_of_ranks(job: HasRecord, step: str = "", warm_up: int = 0) -> list[StepShare]:
    """Each rank's mean step.

    step: the name of the `labkit.span` around each step; without one the whole job is one step, from its
        first event to its last. Computing is what the other spans name, but for those of kind "idle",
        "communication" and "step".
    warm_up: how many steps of each rank to leave out, from the first.
    ValueError where a rank has no step left, or nothing was recorded.
    """
    if warm_up < 0:
        raise ValueError(f"warm_up, the steps to leave out, must be 0 or more, got {warm_up}")
    if not step and warm_up:
        raise ValueError(f'warm_up={warm_up} leaves out steps: say how they are named too, step="step"')
    if not (step or job.spans or job.collectives):
        raise ValueError(
            "nothing was recorded: no communication and no region; put `with labkit.span(...):` around work"
        )
    came = everybody_came(job.collectives)
    shares = []
    for rank in range(job.ranks):
        calls = [(c.start, c.end, came[c]) for c in job.collectives if c.rank == rank and c.end is not None]
        compute = [(s.start, s.end) for s in job.spans if s.rank == rank and _computes(s, step)]
        windows = _windows(job, rank, step)[warm_up:]
        if not windows:
            raise ValueError(
                f"expected more than {warm_up} spans named {step!r} on rank {rank}, found "
                f"{len(_windows(job, rank, step))}; put `with labkit.span({step!r}):` around each step"
            )
        shares.append(mean_share([step_share(*window, compute, calls) for window in windows]))
    return shares


def _computes(span: Span, step: str) -> bool:
    return span.kind not in _NOT_COMPUTING and span.name != step


def _windows(job: HasRecord, rank: int, step: str) -> list[tuple[float, float]]:
    if step:
        return [(s.start, s.end) for s in job.spans if s.rank == rank and s.name == step]
    moments = [(s.start, s.end) for s in job.spans]
    moments += [(c.start, c.start if c.end is None else c.end) for c in job.collectives]
    return [(min(start for start, _ in moments), max(end for _, end in moments))] if moments else []


def draw_breakdown(job: HasRecord, step: str = "", warm_up: int = 0) -> Picture:
    """One bar a rank, as `shares_of_ranks` divides its mean step."""
    expect_job(job, "draw_breakdown(job)")
    shares = shares_of_ranks(job, step, warm_up)
    figure, (axes,) = new_figure(height=1.2 + 0.42 * job.ranks)
    longest = max(share.total for share in shares) * 1e3
    for rank, share in enumerate(shares):
        left = 0.0
        for part, seconds in share.as_dict().items():
            _, colour, hatch = PARTS[part]
            width = seconds * 1e3
            axes.barh(rank, width, 0.62, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.8)
            if seconds > 0.07 * share.total and width > 0.05 * longest:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85}
                told = f"{seconds / share.total:.0%}"
                axes.text(
                    left + width / 2, rank, told, ha="center", va="center", fontsize=8, color=INK, bbox=box
                )
            left += width
    axes.set_yticks(range(job.ranks), [f"rank {rank}" for rank in range(job.ranks)])
    axes.set_ylim(job.ranks - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("milliseconds of a step" if step else "milliseconds of the run", fontsize=9)
    patches = [Patch(facecolor=c, hatch=h, edgecolor="white", label=name) for name, c, h in PARTS.values()]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return Picture(figure, _in_words(shares))


def _in_words(shares: Sequence[StepShare]) -> str:
    ranks = [
        f"rank {rank}: "
        + ", ".join(f"{PARTS[part][0]} {s * 1e3:.1f} ms" for part, s in share.as_dict().items())
        for rank, share in enumerate(shares)
    ]
    return "Where the time goes. " + "; ".join(ranks) + "."
