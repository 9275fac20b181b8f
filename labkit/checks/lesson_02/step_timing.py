"""Timing work that a device does on its own: what its check asks, and which answers are true."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from labkit import devices
from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Property, no_inputs
from labkit.checks.old_form import Exercise, Finding
from labkit.checks.rank import Rank

BELOW, ABOVE = 0.9, 1.6  # of the true time: a busy host adds to it


def time_steps(rank: Rank) -> None:
    """Have the student time steps that keep stand-in devices busy for stated times (milliseconds)."""
    params = rank.params
    with devices.stand_in(len(params["busy_ms"]), bytes_each=2**20) as gpus:
        calls = [0]
        if params["earlier_ms"]:
            devices.busy(params["earlier_ms"] / 1e3, "cuda:0", "earlier work")
        step = _step(params["busy_ms"], params["first_ms"], calls)
        seconds = rank.student.seconds_per_step(step, gpus.devices, params["steps"])
        rank.fact("milliseconds", float(seconds) * 1e3)
        rank.fact("calls", calls[0])


def _step(busy_ms: list[float], first_ms: float, calls: list[int]) -> Callable[[], None]:
    def step() -> None:
        calls[0] += 1
        for index, milliseconds in enumerate(busy_ms):
            extra = first_ms if calls[0] == 1 else 0
            devices.busy((milliseconds + extra) / 1e3, f"cuda:{index}", "step")

    return step


def judge_step_time(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """The mean is that of the slowest device, whatever went before."""
    (name,), params = case.properties, case.params
    true, seen = max(params["busy_ms"]), answers[0].facts["milliseconds"]
    wanted = f"about {true:g} ms a step, as long as the slowest device is busy with one"
    yield Finding(name, BELOW * true <= seen <= ABOVE * true, wanted, f"{seen:.1f} ms")
    calls, least = answers[0].facts["calls"], params["steps"]
    yield Finding(name, calls >= least, f"at least {least} steps run", f"{calls} steps run")


# ---- the exercise


def timing_case(
    name: str, property_name: str, busy_ms: list[float], seed: int, first_ms: float = 0, earlier_ms: float = 0
) -> Case:
    """Steps that keep device k busy for busy_ms[k]; the first one longer; other work queued before."""
    params = {"busy_ms": busy_ms, "first_ms": first_ms, "earlier_ms": earlier_ms, "steps": 4}
    return Case(name, 1, params, seed, (property_name,))


def _timing_cases(seed: int) -> list[Case]:
    return [
        timing_case("one device", "device-time", [40], seed),
        timing_case("the first is slower", "device-time", [60, 20], seed),
        timing_case("the last is slower", "device-time", [10, 20, 50], seed),
        timing_case("slow first step", "first-step", [40], seed, first_ms=250),
        timing_case("work before", "earlier-work", [40, 20], seed, earlier_ms=250),
    ]


TIMING = Exercise(
    "02.step-seconds",
    "Time what the device does",
    ("seconds_per_step",),
    (
        Property(
            "device-time",
            "numbers",
            2,
            "The time is that of the slowest device, not of the host that queued the work.",
            "the clock is read before every device was waited for with torch.cuda.synchronize(device)",
        ),
        Property(
            "first-step",
            "mechanism",
            1,
            "A first step, with its one-time costs, is run and not counted.",
            "the clock starts before the first step",
        ),
        Property(
            "earlier-work",
            "mechanism",
            1,
            "Work that was queued before is over when the clock starts.",
            "no synchronization between the first step and the start of the clock",
        ),
    ),
    _timing_cases,
    no_inputs,
    time_steps,
    judge_step_time,
)
