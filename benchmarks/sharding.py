"""Lesson 08's three stages and its checkpoint against PyTorch's: the time of a step, and their bytes.

    python benchmarks/sharding.py [--json] [--rounds 60]

Stage 1 against ZeroRedundancyOptimizer under DistributedDataParallel, stages 2 and 3 against fully_shard,
which keeps the weights between forward and backward (2) or not (3); the checkpoint against torch's own.
Same model, data, optimizer (SGD with momentum) and ranks, in one job. The two take turns, each first in
every second round; a step lasts from a barrier to a barrier. ratio: how many times faster ours is, or how
many times fewer bytes, the median over the rounds, with its 95% interval in the note.

Peak bytes are those of the tensors alive after each operation of a step, counted exactly, of the rank that
has most; the median of three steps, as gloo lets go of its own copies a moment sooner or later. The
buckets of DistributedDataParallel, which C++ makes, are not seen, so stage 1 has no target.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _common import Row, median, report, spread
from torch import Tensor, nn

import labkit
from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import Submission, collect
from labkit.record.live import LiveBytes, bytes_of_process, tensors_of_process

LAYERS, ROWS = 6, 32
WIDTHS = (384, 128)
RATE, MOMENTUM = 0.05, 0.9
NAMES = {
    "08.sharded-optimizer": ["ShardedOptimizer"],
    "08.sharded-gradients": ["ShardedGradients"],
    "08.fully-sharded-module": ["FullyShardedModule"],
    "08.sharded-checkpoint": ["save_shards", "load_shards"],
}
Step = Callable[[], None]
Weights = Callable[[], list[Tensor]]
Contender = Callable[[Any, int, Tensor, dist.ProcessGroup], tuple[Step, Weights]]


def solution(exercise: str) -> Submission:
    """The lesson's reference solution, to be loaded on the ranks."""
    return collect(reference_cells("08"), exercise, NAMES[exercise])


def make_model(width: int) -> nn.Sequential:
    """The same weights on every rank and each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)) for _ in range(LAYERS))
    )


def unit_bytes(width: int) -> int:
    return 4 * 2 * (width * width + width)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)


def stepper(model: nn.Module, x: Tensor, optimizer: Any, after: Step = lambda: None) -> Step:
    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after()

    return step


# -- stage 1


def our_stage_1(student: Any, width: int, x: Tensor, group: dist.ProcessGroup) -> tuple[Step, Weights]:
    model = make_model(width)
    optimizer = student.ShardedOptimizer(
        model.parameters(), torch.optim.SGD, group, lr=RATE, momentum=MOMENTUM
    )
    return stepper(model, x, optimizer), lambda: list(model.parameters())


def torchs_stage_1(student: Any, width: int, x: Tensor, group: dist.ProcessGroup) -> tuple[Step, Weights]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(make_model(width), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, process_group=group, lr=RATE, momentum=MOMENTUM
    )
    return stepper(model, x, optimizer), lambda: list(model.parameters())


# -- stages 2 and 3


def our_stage_2(student: Any, width: int, x: Tensor, group: dist.ProcessGroup) -> tuple[Step, Weights]:
    model = make_model(width)
    sharded = student.ShardedGradients(model, group, unit_bytes(width))
    return stepper(model, x, sgd(sharded.shards), sharded.gather_weights), lambda: list(model.parameters())


def our_stage_3(student: Any, width: int, x: Tensor, group: dist.ProcessGroup) -> tuple[Step, Weights]:
    model = make_model(width)
    sharded = student.FullyShardedModule(model, list(model), group)
    return stepper(sharded, x, sgd(sharded.shards)), lambda: list(sharded.full_weights().values())


def torchs_stage(
    reshard: bool, student: Any, width: int, x: Tensor, group: dist.ProcessGroup
) -> tuple[Step, Weights]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = make_model(width), DeviceMesh.from_group(group, "cpu")
    for unit in model:
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return stepper(model, x, sgd(model.parameters())), lambda: [p.full_tensor() for p in model.parameters()]


def torchs_stage_2(student: Any, width: int, x: Tensor, group: dist.ProcessGroup) -> tuple[Step, Weights]:
    return torchs_stage(False, student, width, x, group)


def torchs_stage_3(student: Any, width: int, x: Tensor, group: dist.ProcessGroup) -> tuple[Step, Weights]:
    return torchs_stage(True, student, width, x, group)


PAIRS: dict[str, tuple[str, Contender, Contender, str]] = {
    "stage 1": ("08.sharded-optimizer", our_stage_1, torchs_stage_1, "ZeroRedundancyOptimizer"),
    "stage 2": ("08.sharded-gradients", our_stage_2, torchs_stage_2, "fully_shard, weights stay"),
    "stage 3": ("08.fully-sharded-module", our_stage_3, torchs_stage_3, "fully_shard"),
}

TARGETS = {"stage 1": None, "stage 2": 1.0, "stage 3": 1.0}

# -- on the ranks


def own_rows(width: int, group: dist.ProcessGroup) -> Tensor:
    torch.manual_seed(1 + dist.get_rank(group))
    return torch.randn(ROWS, width)


def race(
    submission: Submission,
    contenders: tuple[Contender, Contender],
    width: int,
    rounds: int,
    group: dist.ProcessGroup,
) -> tuple[list[float], list[float], float]:
    """Seconds of each round of ours and of theirs, and the largest difference of a weight at the end."""
    student, x = submission.load(), own_rows(width, group)
    pair = [contender(student, width, x, group) for contender in contenders]
    seconds: tuple[list[float], list[float]] = ([], [])
    turns = list(zip([step for step, _ in pair], seconds, strict=True))
    for number in range(rounds + 3):
        for step, found in turns if number % 2 else turns[::-1]:
            dist.barrier(group)
            start = time.perf_counter()
            step()
            dist.barrier(group)
            if number >= 3:
                found.append(time.perf_counter() - start)
    ours, theirs = (weights() for _, weights in pair)
    return *seconds, max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


def peak(submission: Submission, contender: Contender, width: int, group: dist.ProcessGroup) -> float:
    """Most bytes alive in a step, the median of three steps, without what was there before."""
    student, x = submission.load(), own_rows(width, group)
    before = bytes_of_process()
    step, _ = contender(student, width, x, group)
    step()
    step()
    found = []
    for _ in range(3):
        gc.collect()
        live = LiveBytes()
        live.count(tensors_of_process())
        with live:
            step()
        found.append(live.peak - before)
    return median(found)


def measured(
    submission: Submission,
    contenders: tuple[Contender, Contender],
    width: int,
    rounds: int,
    group: dist.ProcessGroup,
) -> tuple[list[float], tuple[list[float], list[float], float]]:
    """The peaks of both, one after the other, and then the race."""
    peaks = [peak(submission, contender, width, group) for contender in contenders]
    return peaks, race(submission, contenders, width, rounds, group)


def checkpoints(
    submission: Submission, directory: str, total: int, rounds: int, group: dist.ProcessGroup
) -> dict[str, Any]:
    """Seconds of saving and resuming, ours and theirs, and bytes on disk."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    student, size, rank = submission.load(), dist.get_world_size(group), dist.get_rank(group)
    mesh = DeviceMesh.from_group(group, "cpu")
    torch.manual_seed(0)
    flats = {name: torch.randn(total) for name in ("weights", "momentum")}
    shards = {name: flat.chunk(size)[rank].clone() for name, flat in flats.items()}
    cut = {name: distribute_tensor(flat, mesh, [Shard(0)]) for name, flat in flats.items()}
    empty = {name: torch.zeros_like(tensor) for name, tensor in cut.items()}
    back: dict[str, Tensor] = {}

    def save(where: str) -> None:
        student.save_shards(where, 1, shards, dict.fromkeys(flats, total), {}, group)

    def load(where: str) -> None:
        back.update(student.load_shards(where, group)[1])

    jobs = {
        "ours": (save, load),
        "theirs": (
            lambda where: dcp.save(cut, checkpoint_id=where, process_group=group),
            lambda where: dcp.load(empty, checkpoint_id=where, process_group=group),
        ),
    }
    seconds: dict[str, list[float]] = {f"{who} {what}": [] for who in jobs for what in ("save", "resume")}
    for number in range(rounds + 1):
        for who, calls in list(jobs.items())[:: 1 if number % 2 else -1]:
            for what, call in zip(("save", "resume"), calls, strict=True):
                dist.barrier(group)
                start = time.perf_counter()
                call(f"{directory}/{who}")
                dist.barrier(group)
                if number:
                    seconds[f"{who} {what}"].append(time.perf_counter() - start)
    equal = all(torch.equal(back[name], empty[name].to_local()) for name in flats)
    return {**seconds, "equal": equal}


# -- rows


def interval(ratios: list[float]) -> tuple[float, float]:
    """Of the median, 95%: the order statistics about 0.98 sqrt(n) places from the middle."""
    ordered, half = sorted(ratios), 0.98 * len(ratios) ** 0.5
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, int(middle - half))], ordered[min(len(ordered) - 1, int(middle + half + 1))]


def compared(
    what: str, ours: list[float], theirs: list[float], peer: str, note: str, target: float | None = 1.0
) -> Row:
    """One row of seconds, in milliseconds."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    low, high = interval(ratios)
    note = f"95% of the ratio: {low:.3g} to {high:.3g}; ours {spread([s * 1e3 for s in ours])}; {note}"
    return Row(what, median(ours) * 1e3, median(theirs) * 1e3, "ms", median(ratios), target, peer, note)


def rows_of(stage: str, ranks: int, width: int, rounds: int) -> list[Row]:
    exercise, ours, theirs, peer = PAIRS[stage]
    submission, about = solution(exercise), f"{ranks} ranks, {2 * LAYERS} layers {width} wide"
    job = labkit.launch(
        measured,
        submission,
        (ours, theirs),
        width,
        rounds,
        ranks=ranks,
        backend="gloo",
        record=False,
        timeout=500,
    )
    mine, other, apart = job.results[0][1]
    held = [max(result[0][which] for result in job.results) for which in (0, 1)]
    target = TARGETS[stage]
    note = f"weights differ by {apart:.1g}"
    timed = compared(f"step of {stage}, {about}", mine, other, peer, note, target)
    ratio, megabytes = held[1] / held[0], [num_bytes / 1e6 for num_bytes in held]
    return [timed, Row(f"peak of {stage}, {about}", *megabytes, "MB", ratio, target, peer, "tensors alive")]


def checkpoint_rows(ranks: int, total: int, rounds: int) -> list[Row]:
    directory = tempfile.mkdtemp(prefix="sharding-")
    try:
        submission = solution("08.sharded-checkpoint")
        job = labkit.launch(
            checkpoints,
            submission,
            directory,
            total,
            rounds,
            ranks=ranks,
            backend="gloo",
            record=False,
            timeout=500,
        )
        sizes = [
            sum(f.stat().st_size for f in Path(directory, who).rglob("*") if f.is_file()) / 1e6
            for who in ("ours", "theirs")
        ]
    finally:
        shutil.rmtree(directory)
    found, peer = job.results[0], "torch.distributed.checkpoint"
    about = f"{ranks} ranks, 2 x {total / 1e6:g} million numbers"
    note = f"the same shards back: {found['equal']}"
    rows = [
        compared(f"{what}, {about}", found[f"ours {what}"], found[f"theirs {what}"], peer, note)
        for what in ("save", "resume")
    ]
    return [*rows, Row(f"size, {about}", *sizes, "MB", sizes[1] / sizes[0], 1.0, peer, "on disk")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "", add_help=False)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_known_args()[0].rounds
    rows = [
        row
        for stage in PAIRS
        for width in WIDTHS
        for ranks in (2, 4)
        for row in rows_of(stage, ranks, width, rounds)
    ]
    rows += [row for ranks in (2, 4) for row in checkpoint_rows(ranks, 1_000_000, max(5, rounds // 3))]
    report("sharding", rows, __doc__ or "")


if __name__ == "__main__":
    main()
