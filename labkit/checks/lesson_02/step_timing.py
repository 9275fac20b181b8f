"""Timing work that a device does on its own: what its check asks, and which answers are true."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from labkit import devices
from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.rank import Rank

BELOW, ABOVE = 0.9, 1.6  # of the true time: a busy host adds to it
TRIES = 3
SPARE = 2**14  # numbers that a device has held before: what stays of them is its peak
AS_IT_IS = "device 0 the current one, random numbers as they were"
MODES: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "with gradients": torch.enable_grad,
    "without gradients": torch.no_grad,
    "in inference mode": torch.inference_mode,
}


def time_steps(rank: Rank) -> None:
    """Have the student time steps that keep stand-in devices busy for stated times (milliseconds). Facts:
    milliseconds; calls, how many for each time that the same step was timed; as called, the circumstances
    that calls of the step met; changed, what was not as before when all was over.

    A busy host only ever adds: what is too much is timed again, and the least is taken.
    """
    params, times = rank.params, list[float]()
    for _ in range(TRIES):
        stand_ins = devices.stand_in(len(params["busy_ms"]), bytes_each=2**20)
        with stand_ins as gpus, MODES[params["mode"]]():
            for device in gpus.devices:
                torch.empty(SPARE, device=device)
            lanes, calls = _lanes(gpus, params["aside"]), list[str]()
            if params["earlier_ms"]:
                _keep_busy(lanes[params["earlier_on"]], params["earlier_ms"], "earlier work")
            step = _step(lanes, params["busy_ms"], {1: params["first_ms"], 2: params["second_ms"]}, calls)
            before = _surroundings(gpus)
            seconds = rank.student.seconds_per_step(step, gpus.devices, params["steps"])
            after, counts = _surroundings(gpus), [len(calls)]
            if params["twice"]:
                rank.student.seconds_per_step(step, gpus.devices, params["steps"])
                counts.append(len(calls) - counts[0])
        times.append(float(seconds) * 1e3)
        rank.fact("milliseconds", min(times))
        rank.fact("calls", counts)
        rank.fact("as called", sorted(set(calls)))
        rank.fact("changed", [name for name in before if before[name] != after[name]])
        if times[-1] <= ABOVE * _true_milliseconds(params):
            break


def _true_milliseconds(params: Mapping[str, Any]) -> float:
    """Of a step, in the mean: as long as the slowest device is busy."""
    return max(params["busy_ms"]) + params["second_ms"] / params["steps"]


def _surroundings(gpus: devices.StandIns) -> dict[str, Any]:
    """What somebody who times steps finds, and leaves."""
    return {
        "whether gradients are on": _mode(),
        "the current device": torch.cuda.current_device(),
        "the current streams": [torch.cuda.current_stream(device) for device in gpus.devices],
        "the devices' peaks": [torch.cuda.max_memory_allocated(device) for device in gpus.devices],
        "torch's random numbers": torch.get_rng_state().tolist(),
        "Python's random numbers": random.getstate(),
        "how torch chooses kernels": (
            torch.backends.cudnn.benchmark,
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
        ),
        "anomaly detection": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "whether Python collects garbage": gc.isenabled(),
    }


def _mode() -> str:
    """Which of MODES a step meets, or would."""
    if torch.is_inference_mode_enabled():
        return "in inference mode"
    return "with gradients" if torch.is_grad_enabled() else "without gradients"


def _lanes(gpus: devices.StandIns, aside: bool) -> list[torch.cuda.Stream]:
    """A stream of each device: the one that is current, or one aside of it."""
    made = torch.cuda.Stream if aside else torch.cuda.default_stream
    return [made(device) for device in gpus.devices]


def _keep_busy(lane: torch.cuda.Stream, milliseconds: float, name: str) -> None:
    with torch.cuda.stream(lane):
        devices.busy(milliseconds / 1e3, lane.device, name)


def _step(
    lanes: Sequence[torch.cuda.Stream], busy_ms: list[float], more_ms: dict[int, float], calls: list[str]
) -> Callable[[], None]:
    """A step that notes how it is called; some of its calls, from 1, take more."""
    state = torch.get_rng_state()

    def step() -> None:
        numbers = "as they were" if torch.equal(torch.get_rng_state(), state) else "seeded anew"
        device = torch.cuda.current_device()
        calls.append(f"{_mode()}, device {device} the current one, random numbers {numbers}")
        for lane, milliseconds in zip(lanes, busy_ms, strict=True):
            _keep_busy(lane, milliseconds + more_ms.get(len(calls), 0), "step")

    return step


def is_the_slowest_devices(evidence: Evidence) -> Iterator[Finding]:
    """The mean is that of the slowest device, whatever went before."""
    params, facts = evidence.case.params, evidence.answers[0].facts
    true = _true_milliseconds(params)
    seen = facts["milliseconds"]
    wanted = f"about {true:g} ms a step, as long as the slowest device is busy with one in the mean"
    yield Finding(BELOW * true <= seen <= ABOVE * true, wanted, f"{seen:.1f} ms")


def one_call_goes_before(evidence: Evidence) -> Iterator[Finding]:
    """As many calls as steps, and one, also for a step that was timed before."""
    asked = evidence.case.params["steps"] + 1
    for number, calls in enumerate(evidence.answers[0].facts["calls"]):
        again = "; the same step was timed before" if number else ""
        yield Finding(calls == asked, f"{asked} calls, the one before included{again}", f"{calls} calls")


def called_as_it_is(evidence: Evidence) -> Iterator[Finding]:
    """A step meets what its caller would have it meet."""
    seen = evidence.answers[0].facts["as called"]
    wanted = f"{evidence.case.params['mode']}, {AS_IT_IS}"
    yield Finding(seen == [wanted], f"each call {wanted}", "; ".join(seen))


def leaves_all_as_it_was(evidence: Evidence) -> Iterator[Finding]:
    """Who is told the time finds everything as it was."""
    changed = evidence.answers[0].facts["changed"]
    yield Finding(not changed, "nothing around the steps changed when all is over", ", ".join(changed))


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
    aside: bool = False,
    twice: bool = False,
    mode: str = "with gradients",
) -> Case:
    """Steps that keep device k busy for busy_ms[k], the first two longer; on one, other work before. aside:
    all of it on streams other than the current ones. twice: the same step is timed once more. mode: which
    of MODES the caller is in.
    """
    params = {"busy_ms": busy_ms, "first_ms": first_ms, "second_ms": second_ms, "earlier_ms": earlier_ms}
    params |= {"steps": steps, "earlier_on": earlier_on, "aside": aside, "twice": twice, "mode": mode}
    return Case(name, 1, params, seed, kind=kind)


def _timing_cases(seed: int) -> list[Case]:
    return [
        timing_case("one device", "device-time", [14], seed, steps=9),
        timing_case("the first is slower", "device-time", [60, 20], seed),
        timing_case("unequal steps", "device-time", [20, 30], seed, second_ms=160),
        timing_case("the last is slower", "device-time", [10, 20, 50], seed),
        timing_case("on other streams", "device-time", [20, 30], seed, aside=True),
        timing_case("slow first step", "first-step", [40], seed, first_ms=250),
        timing_case("many steps", "first-step", [14], seed, steps=24),
        timing_case("work before", "earlier-work", [40, 20], seed, earlier_ms=250, earlier_on=1),
        timing_case("two steps", "device-time", [110, 30], seed, steps=2),  # where one more or less is much
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
            "The time is that of the slowest device, not of the host that queued the work; nothing around the"
            " steps is changed.",
            "the clock is read before every device was waited for with torch.cuda.synchronize(device)",
            {"device-time": every(is_the_slowest_devices, called_as_it_is, leaves_all_as_it_was)},
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
