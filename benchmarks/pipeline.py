"""Lesson 04's executor against torch.distributed.pipelining, and its measured bubble against theory.

    python benchmarks/pipeline.py [--json] [--rounds 60] [--repeats 3]

Step time: the same stages, batch and ranks in one job; ours and theirs take turns, and a step lasts from a
barrier to a barrier. The rounds are those of several jobs, each of which has its luck with where things lie.
ratio: how many times faster ours is, the median over the rounds.

Bubble: stages of fixed duration (a sleep stands for a kernel), so that four of them can work at once on two
cores. With --device cuda nothing is measured: the executor tells its messages apart by tags, which NCCL does
not have, and starts them one by one, so that ranks would wait for each other for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from _common import Row, add_rounds, median, report, spread
from _device import Device, asked_device, device_arguments
from torch import Tensor, nn

import labkit
from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import Submission, collect
from labkit.pipeline import PipelinePart, TimedStage, measured_bubble
from labkit.theory.pipeline import bubble_of_total
from labkit.theory.schedule import simulate

MICRO_BATCHES = 8
SHAPES = {"cpu": (256, 128)}  # width of a layer, samples a batch
SCHEDULES = ("gpipe", "1f1b")
FORWARD_MS, BACKWARD_MS = 20, 40
WHO, JOBS = ("ours", "theirs"), 5
POINTS = 5.0  # how far the measured bubble may be from theory, in percentage points


def solution() -> Submission:
    """The lesson's reference solution, to be loaded on the ranks."""
    names = ("run_schedule", "gpipe_schedule", "one_f_one_b_schedule")
    return collect(reference_cells("04"), "04.run-schedule", names)


def make_stages(num_stages: int, width: int) -> list[nn.Module]:
    """The same on every rank: two linear layers a stage."""
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(num_stages)
    ]


def part_of(
    group: dist.ProcessGroup, stage: nn.Module, x: Tensor, y: Tensor, num_micro_batches: int
) -> PipelinePart:
    batches = list(zip(x.tensor_split(num_micro_batches), y.tensor_split(num_micro_batches), strict=True))
    size = dist.get_world_size(group)
    return PipelinePart(
        {dist.get_rank(group): stage},
        size,
        batches,
        nn.functional.mse_loss,
        lambda _, i: torch.empty_like(batches[i][0]),
    )


def actions_for(schedule: str, lesson: ModuleType, rank: int, size: int, m: int) -> list[Any]:
    """The student's list for this rank."""
    return {"gpipe": lesson.gpipe_schedule, "1f1b": lesson.one_f_one_b_schedule}[schedule](rank, size, m)


# ---- step time


def step_times(
    submission: Submission, device: Device, rounds: int, group: dist.ProcessGroup
) -> dict[str, list[float]]:
    """Seconds of every step, in turn, by contender and schedule."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    torch.set_num_threads(1)
    rank, size, lesson = dist.get_rank(group), dist.get_world_size(group), submission.load()
    width, samples = SHAPES[device.kind]
    stage = make_stages(size, width)[rank].to(device.kind)
    x, y = (torch.randn(samples, width, device=device.kind) for _ in range(2))
    part = part_of(group, stage, x, y, MICRO_BATCHES)

    def ours(schedule: str) -> Callable[[], object]:
        actions = actions_for(schedule, lesson, rank, size, MICRO_BATCHES)
        return lambda: lesson.run_schedule(part, actions, group)

    def theirs(schedule: str) -> Callable[[], object]:
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
        wrapped = PipelineStage(stage, rank, size, torch.device(device.kind), group=group)
        runner = kind(wrapped, n_microbatches=MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
        inputs, target = ((x,) if rank == 0 else ()), (y if rank == size - 1 else None)
        return lambda: runner.step(*inputs, target=target)

    contenders = {
        f"{name} {s}": who(s) for s in SCHEDULES for name, who in zip(WHO, (ours, theirs), strict=True)
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 3):
        for name in in_turn(list(contenders), number):
            step = contenders[name]
            stage.zero_grad()
            dist.barrier(group=group)
            start = device.now()
            step()
            dist.barrier(group=group)
            if number >= 3:  # the first rounds make connections and infer shapes
                times[name].append(device.now() - start)
    return times


def in_turn(names: list[str], number: int) -> list[str]:
    """The order of a round: each is at each place, and after each of its neighbours, equally often."""
    order = names[number % len(names) :] + names[: number % len(names)]
    return order[::-1] if number // len(names) % 2 else order


def step_rows(submission: Submission, device: Device, rounds: int) -> list[Row]:
    rows = []
    for size in device.sizes(least=2):
        jobs = [
            labkit.launch(
                step_times,
                submission,
                device,
                rounds,
                ranks=size,
                backend=device.backend,
                timeout=300,
                record=False,
            )
            for _ in range(JOBS)
        ]
        for schedule in SCHEDULES:
            ours, theirs = ([t for j in jobs for t in j.results[0][f"{who} {schedule}"]] for who in WHO)
            note = f"{spread(ours)} against {spread(theirs)}"
            ratio = median([b / a for a, b in zip(ours, theirs, strict=True)])
            name = f"step time, {schedule}, p={size}, m={MICRO_BATCHES}"
            peer = "torch.distributed.pipelining"
            rows.append(Row(name, median(ours), median(theirs), "s", ratio, 1.0, peer, note))
    return rows


# ---- bubble


def timed_batch(
    submission: Submission, schedule: str, num_micro_batches: int, group: dist.ProcessGroup
) -> None:
    """One batch through stages of fixed duration."""
    torch.set_num_threads(1)
    rank, size, lesson = dist.get_rank(group), dist.get_world_size(group), submission.load()
    stage = TimedStage(make_stages(size, 8)[rank], FORWARD_MS, BACKWARD_MS)
    x, y = torch.randn(2 * num_micro_batches, 8), torch.randn(2 * num_micro_batches, 8)
    part = part_of(group, stage, x, y, num_micro_batches)
    dist.barrier(group=group)
    lesson.run_schedule(part, actions_for(schedule, lesson, rank, size, num_micro_batches), group)


def bubble_rows(submission: Submission, repeats: int) -> list[Row]:
    """One row a size: ratio is the allowed distance over the measured one."""
    rows = []
    for schedule in SCHEDULES:
        for size in (2, 4):
            for m in (2, 4, 8, 16):
                jobs = [
                    labkit.launch(timed_batch, submission, schedule, m, ranks=size, backend="gloo")
                    for _ in range(repeats)
                ]
                found = [100 * measured_bubble(job) for job in jobs]
                theory = 100 * bubble_of_total(size, m)
                distance = abs(median(found) - theory)
                name, note = f"bubble, {schedule}, p={size}, m={m}", f"{distance:.1f} points; {spread(found)}"
                ratio = min(100.0, POINTS / max(distance, 1e-9))
                rows.append(Row(name, median(found), theory, "% idle", ratio, 1.0, "theory", note))
    return rows


def simulation_row(submission: Submission, rounds: int) -> Row:
    """How long the simulator takes for a large schedule."""
    size, m, seconds = 64, 512, []
    lesson = submission.load()
    schedule = [actions_for("1f1b", lesson, rank, size, m) for rank in range(size)]
    for _ in range(rounds):
        began = time.perf_counter()
        simulate(schedule)
        seconds.append(1e3 * (time.perf_counter() - began))
    name, mine = f"simulating 1f1b, p={size}, m={m}", median(seconds)
    return Row(name, mine, 100.0, "ms", 100.0 / mine, 1.0, "100 ms", spread(seconds))


def main() -> None:
    parser = device_arguments(__doc__)
    add_rounds(parser, 60)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.device == "cuda":
        raise SystemExit("the executor's messages have tags, which NCCL has not: nothing was measured")
    submission, device = solution(), asked_device(options.device)
    rows = step_rows(submission, device, options.rounds)
    rows += [simulation_row(submission, options.rounds), *bubble_rows(submission, options.repeats)]
    report("pipeline", rows, options.json)


if __name__ == "__main__":
    main()
