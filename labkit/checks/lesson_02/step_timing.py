"""Timing work that a device does on its own: what its check asks, and which answers are true."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from labkit import devices
from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.rank import Rank

BELOW, ABOVE = 0.9, 1.6  # of the true time: a busy host adds to it
TRIES = 3


def time_steps(rank: Rank) -> None:
    """Have the student time steps that keep stand-in devices busy for stated times (milliseconds).

    A busy host only ever adds: what is too much is timed again, and the least is taken.
    """
    params, times = rank.params, list[float]()
    for _ in range(TRIES):
        with devices.stand_in(len(params["busy_ms"]), bytes_each=2**20) as gpus:
            calls = [0]
            if params["earlier_ms"]:
                devices.busy(params["earlier_ms"] / 1e3, f"cuda:{params['earlier_on']}", "earlier work")
            step = _step(params["busy_ms"], {1: params["first_ms"], 2: params["second_ms"]}, calls)
            seconds = rank.student.seconds_per_step(step, gpus.devices, params["steps"])
        times.append(float(seconds) * 1e3)
        rank.fact("milliseconds", min(times))
        rank.fact("calls", calls[0])
        if times[-1] <= ABOVE * _true_milliseconds(params):
            break


def _true_milliseconds(params: Mapping[str, Any]) -> float:
    """Of a step, in the mean: as long as the slowest device is busy."""
    return max(params["busy_ms"]) + params["second_ms"] / params["steps"]


def _step(busy_ms: list[float], more_ms: dict[int, float], calls: list[int]) -> Callable[[], None]:
    """A step that counts its calls; some of them, from 1, take more."""

    def step() -> None:
        calls[0] += 1
        for index, milliseconds in enumerate(busy_ms):
            extra = more_ms.get(calls[0], 0)
            devices.busy((milliseconds + extra) / 1e3, f"cuda:{index}", "step")

    return step


def is_the_slowest_devices(evidence: Evidence) -> Iterator[Finding]:
    """The mean is that of the slowest device, whatever went before."""
    params, facts = evidence.case.params, evidence.answers[0].facts
    true = _true_milliseconds(params)
    seen = facts["milliseconds"]
    wanted = f"about {true:g} ms a step, as long as the slowest device is busy with one in the mean"
    yield Finding(BELOW * true <= seen <= ABOVE * true, wanted, f"{seen:.1f} ms")


def one_call_goes_before(evidence: Evidence) -> Iterator[Finding]:
    """As many calls as steps, and one."""
    calls, asked = evidence.answers[0].facts["calls"], evidence.case.params["steps"] + 1
    yield Finding(calls == asked, f"{asked} calls, the one before included", f"{calls} calls")


def timing_case(
    name: str,
    kind: str,
    busy_ms: list[float],
    seed: int,
    first_ms: float = 0,
    earlier_ms: float = 0,
    second_ms: float = 0,
    steps: int = 4,
    earlier_on: int = 0,
) -> Case:
    """Steps that keep device k busy for busy_ms[k], the first two longer; on one, other work before."""
    params = {"busy_ms": busy_ms, "first_ms": first_ms, "second_ms": second_ms, "earlier_ms": earlier_ms}
    params |= {"steps": steps, "earlier_on": earlier_on}
    return Case(name, 1, params, seed, kind=kind)


def _timing_cases(seed: int) -> list[Case]:
    return [
        timing_case("one device", "device-time", [14], seed, steps=9),
        timing_case("the first is slower", "device-time", [60, 20], seed),
        timing_case("unequal steps", "device-time", [20, 30], seed, second_ms=160),
        timing_case("the last is slower", "device-time", [10, 20, 50], seed),
        timing_case("slow first step", "first-step", [40], seed, first_ms=250),
        timing_case("work before", "earlier-work", [40, 20], seed, earlier_ms=250, earlier_on=1),
    ]


EXERCISE = Exercise(
    "02.step-seconds",
    "Time what the device does",
    ("seconds_per_step",),
    dict.fromkeys(("device-time", "first-step", "earlier-work"), Run(time_steps)),
    _timing_cases,
    (
        Property(
            "device-time",
            "numbers",
            2,
            "The time is that of the slowest device, not of the host that queued the work.",
            "the clock is read before every device was waited for with torch.cuda.synchronize(device)",
            {"device-time": is_the_slowest_devices},
        ),
        Property(
            "first-step",
            "mechanism",
            1,
            "A first step, with its one-time costs, is run and not counted.",
            "the clock starts before the first step",
            {"first-step": every(is_the_slowest_devices, one_call_goes_before)},
        ),
        Property(
            "earlier-work",
            "mechanism",
            1,
            "Work that was queued before is over when the clock starts.",
            "no synchronization between the first step and the start of the clock",
            {"earlier-work": is_the_slowest_devices},
        ),
    ),
)
