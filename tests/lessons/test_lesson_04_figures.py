"""What lesson 04 measures and draws: timed stages, the bubble of a job, pictures of schedules."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import labkit
from labkit.pipeline import TimedStage, measured_bubble, work_spans
from labkit.record import Span
from labkit.show.schedule import draw_bars, draw_bubble, draw_in_flight, draw_measured, draw_schedule
from labkit.theory.schedule import Costs, read_actions, simulate

TWO_RANKS = [read_actions("F0 F1 B0 B1", 0), read_actions("F0 B0 F1 B1", 1)]


@dataclass
class Recorded:
    """A job's record, made by hand."""

    ranks: int = 2
    timeline: list[Span] = field(default_factory=list)


def recorded(*blocks: tuple[int, str, str, float, float]) -> Recorded:
    return Recorded(timeline=[Span(*block) for block in blocks])


def test_the_bubble_of_a_record() -> None:
    """Two ranks over 4 seconds, 3 and 2 of them at work; messages do not count as work."""
    job = recorded(
        (0, "F0", "forward", 10.0, 11.0),
        (0, "B0", "backward", 12.0, 14.0),
        (1, "F0", "forward", 11.0, 13.0),
        (1, "recv", "communication", 10.0, 11.0),
    )
    assert measured_bubble(job) == pytest.approx(3 / 8)
    assert [s.start for s in work_spans(job)] == [0.0, 2.0, 1.0]


def test_a_job_without_stages_has_no_bubble() -> None:
    with pytest.raises(ValueError, match="TimedStage"):
        measured_bubble(recorded((0, "recv", "communication", 0.0, 1.0)))


def test_a_timed_stage_takes_its_time_and_changes_nothing() -> None:
    """Both passes last at least as long as asked for, and values and gradients are the module's own."""
    torch.manual_seed(0)
    plain = nn.Linear(3, 2)
    stage, x = TimedStage(plain, forward_ms=20, backward_ms=30), torch.randn(4, 3, requires_grad=True)
    start = time.monotonic()
    out = stage(x)
    middle = time.monotonic()
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    end = time.monotonic()
    assert middle - start >= 0.020
    assert end - middle >= 0.030
    assert torch.equal(out, plain(x))
    assert torch.allclose(grad, torch.autograd.grad(plain(x).square().sum(), x)[0])


def two_passes() -> None:
    stage, x = TimedStage(nn.Linear(2, 2), forward_ms=5, backward_ms=10), torch.ones(1, 2)
    outs = [stage(x), stage(x)]
    for out in outs:
        out.sum().backward()


@pytest.mark.timeout(60)
def test_stages_are_in_the_timeline_of_a_job() -> None:
    job = labkit.launch(two_passes, ranks=2, backend="gloo", timeout=30)
    for rank in range(2):
        spans = [s for s in work_spans(job) if s.rank == rank]
        assert [(s.name, s.kind) for s in spans] == [
            ("F0", "forward"),
            ("F1", "forward"),
            ("B0", "backward"),
            ("B1", "backward"),
        ]
        assert all(s.end - s.start >= (0.005 if s.kind == "forward" else 0.010) for s in spans)


def test_pictures_say_what_they_show() -> None:
    played = simulate(TWO_RANKS, Costs(1, 2))
    assert "one: 9 in all, 33.3% of it idle" in draw_schedule({"one": played, "two": played}).alt
    measured = recorded((0, "F0", "forward", 0.0, 0.010), (1, "F0", "forward", 0.010, 0.020))
    picture = draw_measured(measured, simulate(TWO_RANKS, Costs(10, 20)))
    assert "measured: 20 ms in all, 50.0% of it idle" in picture.alt
    assert "simulated: 90 ms in all, 33.3% of it idle" in picture.alt
    assert "{'one': [2, 1]}" in draw_in_flight({"one": played}).alt
    assert "[2, 4]" in draw_bubble([2, 4], [1, 2, 4]).alt
    assert "p = 8" in draw_bars({"m=1": 7.0, "m=2": 3.5}, {"m=1": 7.0}, "p = 8").alt


@pytest.mark.days
@pytest.mark.parametrize("panels", [1, 2])
def test_pictures_can_be_drawn(panels: int) -> None:
    played = simulate(TWO_RANKS, Costs(1, 2))
    assert draw_schedule({str(i): played for i in range(panels)}).png(dpi=40).startswith(b"\x89PNG")
