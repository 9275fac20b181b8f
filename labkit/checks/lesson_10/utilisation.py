"""What `10.measured-mfu` must show: steps as the device takes them, model FLOPs over the dense peak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import product
from random import Random
from typing import Any

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_10.asked import plain
from labkit.checks.rank import Rank
from labkit.checks.shared.plain_numbers import wrong_number
from labkit.theory.flops import train_step_flops, utilization
from labkit.theory.hardware import GPU, GPUS
from labkit.theory.models import ModelConfig

HOST_SECONDS = 0.001  # in which the host queues a step
CLOCK_BEGINS = 5000.0
MOST_WAITS = 5  # two at each end of the steps that count, and one before the warm-up
GPT: Mapping[str, Any] = {}
LLAMA: Mapping[str, Any] = {  # fewer key-value heads, and three products in an MLP
    **{"num_kv_heads": 2, "ffn": 1408, "gated_mlp": True, "biases": "none"},
    **{"norm": "rmsnorm", "positions": "rotary", "tied_embeddings": False},
}
WIDE_HEADS: Mapping[str, Any] = {**LLAMA, "head_size": 96}  # more than hidden / heads
SOLD = GPUS["A100 80 GB"], GPUS["H100 80 GB"]


class PretendedDevice:
    """A device and a clock that a check moves: the host queues steps, and waits where it is told to."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.steps, self.now, self.free_at = seconds, 0, CLOCK_BEGINS, CLOCK_BEGINS
        self.waits: list[int] = []  # the steps queued by then, of each time that the host waited

    def step(self) -> None:
        """Queue the next step; it takes the next of `seconds`, and the last of them from then on."""
        takes = self.seconds[min(self.steps, len(self.seconds) - 1)]
        self.steps += 1
        self.now += HOST_SECONDS
        self.free_at = max(self.now, self.free_at) + takes

    def synchronize(self) -> None:
        """The host waits for the device."""
        self.waits.append(self.steps)
        self.now = max(self.now, self.free_at)

    def clock(self) -> float:
        """Seconds."""
        return self.now


def _time(rank: Rank) -> None:
    """Facts: seconds; steps, how many were run; waits, after how many of them the host waited."""
    params = rank.params
    device = PretendedDevice(params["seconds"])
    for _ in range(params.get("queued_before", 0)):
        device.step()
    device.steps = 0
    found = rank.student.seconds_per_step(
        device.step, device.synchronize, device.clock, params["warm_up"], params["steps"]
    )
    rank.fact("seconds", plain(found))
    rank.fact("steps", device.steps)
    rank.fact("waits", device.waits)


def _true_seconds(evidence: Evidence) -> Iterator[Finding]:
    """The mean of the steps after the warm-up, but for what the host needs to queue the first of them."""
    params, facts = evidence.case.params, evidence.answers[0].facts
    warm_up, steps = params["warm_up"], params["steps"]
    durations = [*params["seconds"], *[params["seconds"][-1]] * (warm_up + steps)]
    true = sum(durations[warm_up : warm_up + steps]) / steps
    most = true + HOST_SECONDS / steps
    told = f"{true:.6f} s a step: the {steps} after {warm_up} that do not count, on the device"
    seen = facts["seconds"]
    right = isinstance(seen, int | float) and true * 0.999999 <= seen <= most * 1.000001
    yield Finding(right, told, f"{seen}")


def _waits_at_the_ends(evidence: Evidence) -> Iterator[Finding]:
    """No wait between steps that count, and none again and again elsewhere."""
    waits, steps = evidence.answers[0].facts["waits"], evidence.answers[0].facts["steps"]
    first = steps - evidence.case.params["steps"]
    between = sum(first < queued < steps for queued in waits)
    yield Finding(between == 0, "no synchronize between the steps that count", f"{between}")
    told = f"a synchronize before the steps that count and one after them, at most {MOST_WAITS} in all"
    yield Finding(len(waits) <= MOST_WAITS, told, f"{len(waits)}")


def _runs_as_many(evidence: Evidence) -> Iterator[Finding]:
    wanted = evidence.case.params["warm_up"] + evidence.case.params["steps"]
    seen = evidence.answers[0].facts["steps"]
    yield Finding(seen == wanted, f"{wanted} steps run, warm-up and all", f"{seen}")


def _rate(rank: Rank) -> None:
    """Fact: answers, one a row."""
    answers = []
    for row in rank.params["rows"]:
        given = row | {"config": ModelConfig(**row["config"]), "gpu": GPU(**row["gpu"])}
        answers.append(plain(rank.student.measured_mfu(**given)))
    rank.fact("answers", answers)


def _rates(evidence: Evidence) -> Iterator[Finding]:
    for row, seen in zip(evidence.case.params["rows"], evidence.answers[0].facts["answers"], strict=True):
        gpu, batch, sequence = GPU(**row["gpu"]), row["batch"], row["sequence"]
        flops = train_step_flops(ModelConfig(**row["config"]), sequence, batch)
        expected = utilization(flops, row["seconds"], row["num_gpus"], gpu.dense_bf16)
        about = f"{row['num_gpus']} x {gpu.name}, {batch} x {sequence} tokens in {row['seconds']} s"
        told = f"{expected:.4%} for {about}, recomputing: {row['recompute']}"
        yield Finding(wrong_number(expected, seen) is None, told, _percent(seen))


def _percent(seen: Any) -> str:
    return f"{seen:.4%}" if isinstance(seen, float) else str(seen)


TIME, RATE = Run(_time), Run(_rate)

EXERCISE = Exercise(
    "10.measured-mfu",
    "The MFU of a measured step",
    ("seconds_per_step", "measured_mfu"),
    {"device": TIME, "warm-up": TIME, "queued": TIME, "plain-mfu": RATE, "recomputed": RATE},
    lambda seed: mfu_cases(seed, ""),
    (
        Property(
            "synchronised",
            "mechanism",
            2,
            "The clock is read when the device has done what the host queued.",
            "no synchronize before the last look at the clock, or others between the steps",
            {"device": every(_true_seconds, _waits_at_the_ends)},
            also={"warm-up": _waits_at_the_ends, "queued": _waits_at_the_ends},
        ),
        Property(
            "warm-up",
            "mechanism",
            2,
            "Warm-up steps are run, waited for, and not counted.",
            "the clock starts before the warm-up is over on the device",
            {"warm-up": _true_seconds, "queued": _true_seconds},
        ),
        Property(
            "steps",
            "mechanism",
            1,
            "As many steps are run as were asked for.",
            "the warm-up is taken out of the steps, or one step runs before the clock and counts",
            {"device": _runs_as_many, "warm-up": _runs_as_many},
        ),
        Property(
            "mfu",
            "numbers",
            1,
            "Model FLOPs of the whole batch, over seconds, GPUs and the dense peak.",
            "the peak with sparsity, twice the dense one; the GPUs left out; or every model a GPT",
            {"plain-mfu": _rates},
        ),
        Property(
            "model-not-hardware",
            "numbers",
            2,
            "What is recomputed is no work for the model: it does not raise the MFU.",
            "hardware FLOPs, which make an HFU",
            {"recomputed": _rates},
        ),
    ),
)


def mfu_cases(seed: int, prefix: str) -> list[Case]:
    """Durations and models, drawn from the seed."""
    draw = Random(f"10/mfu/{prefix}{seed}")
    takes = [round(draw.uniform(0.02, 0.3), 3) for _ in range(6)]
    slow = [round(draw.uniform(2, 9), 2), round(draw.uniform(0.5, 2), 2)]
    return [
        _timing(f"{prefix}even steps", "device", seed, takes[:1], 0, 5),
        _timing(f"{prefix}uneven steps", "device", seed, takes, 1, 5),
        _timing(f"{prefix}many steps", "device", seed, takes, 2, 104),
        _timing(f"{prefix}two slow steps first", "warm-up", seed, [*slow, *takes], 2, 4),
        _timing(f"{prefix}one step only", "warm-up", seed, [*slow, *takes], 3, 1),
        _timing(f"{prefix}a long warm-up", "warm-up", seed, [*slow, *takes], draw.randint(9, 14), 3),
        _timing(f"{prefix}work queued before", "queued", seed, takes, 0, 3, queued_before=4),
        _rating(f"{prefix}nothing recomputed", "plain-mfu", seed, _rows(draw)),
        _rating(
            f"{prefix}seconds that cannot be",
            "plain-mfu",
            seed,
            [row | {"seconds": 1e-6} for row in _rows(draw)],
        ),
        _rating(f"{prefix}recomputed", "recomputed", seed, _recomputed_rows(draw)),
    ]


def _timing(
    name: str, kind: str, seed: int, seconds: list[float], warm_up: int, steps: int, queued_before: int = 0
) -> Case:
    about = {"seconds": seconds, "warm_up": warm_up, "steps": steps, "queued_before": queued_before}
    return Case(name, 1, about, seed, kind=kind)


def _rating(name: str, kind: str, seed: int, rows: list[dict[str, Any]]) -> Case:
    return Case(name, 1, {"rows": rows}, seed, kind=kind)


def _rows(draw: Random) -> list[dict[str, Any]]:
    """One for each kind of model on each GPU, of which one is not sold: its peak is nowhere but in itself."""
    made_up = GPU(f"Z{draw.randint(100, 999)}", 2**30 * draw.randint(8, 400), 1e12 * draw.randint(50, 5000))
    about = product((GPT, _odd_gpt(draw), LLAMA, WIDE_HEADS), (*SOLD, made_up))
    return [_row(draw, family, gpu, "none") for family, gpu in about]


def _odd_gpt(draw: Random) -> dict[str, Any]:
    """A GPT that is not what the formulas of papers are for."""
    return {
        "num_kv_heads": draw.choice([1, 2, 4]),
        "head_size": draw.choice([48, 80, 96, 128]),
        "ffn": 64 * draw.randint(9, 90),
    }


def _recomputed_rows(draw: Random) -> list[dict[str, Any]]:
    """One for what is recomputed of each kind of model on each GPU."""
    about = product((GPT, LLAMA), SOLD, ("full", "selective"))
    return [_row(draw, *these) for these in about]


def _row(draw: Random, family: Mapping[str, Any], gpu: GPU, recompute: str) -> dict[str, Any]:
    sequence = draw.choice([512, 1024, 2048])
    return {
        "config": _model(draw, family, sequence),
        "batch": draw.choice([8, 64, 96]),
        "sequence": sequence,
        "seconds": round(draw.uniform(0.2, 9.0), 3),
        "num_gpus": draw.choice([2, 8, 64]),
        "gpu": asdict(gpu),
        "recompute": recompute,
    }


def _model(draw: Random, family: Mapping[str, Any], sequence: int) -> dict[str, Any]:
    heads = draw.choice([8, 16])
    return {
        "num_layers": draw.randint(4, 48),
        "hidden": 64 * heads,
        "num_heads": heads,
        "vocabulary": draw.choice([32000, 50304]),
        "max_sequence": 2 * sequence,
        **family,
    }
