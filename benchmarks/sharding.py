"""Lesson 08's three stages and its checkpoint against PyTorch's: the time of a step, and their bytes.

    python benchmarks/sharding.py [--json] [--device cuda] [--rounds 60]

Stage 1 against ZeroRedundancyOptimizer under DistributedDataParallel, stages 2 and 3 against fully_shard,
which keeps the weights between forward and backward (2) or not (3); the checkpoint against torch's own. One
rank, where nothing is shared, has no target.
Same model, data, optimizer (SGD with momentum) and ranks, in one job. The two take turns, each first in
every second round; a step lasts from a barrier to a barrier. ratio: how many times faster ours is, or how
many times fewer bytes, the median over the rounds, with its 95% interval in the note: where the target lies
inside it, this run cannot tell. Both checkpoints are on the disk (fsync) when saving ends. The last lines, on
standard error, say which targets were met.

Peak bytes are those of the tensors alive after each operation of a step, counted exactly, of the rank that
has most; the median of three steps, as gloo lets go of its own copies a moment sooner or later.

Stage 1 has no target. In units of the weights' bytes its peak is 4 + 2/d: weights, gradients, the flat
gradient, gloo's copy of that while it scatters, and the shards of the mean and the momentum. Theirs is
3 + 1/d: weights, gradients, DDP's buckets, and the shard of the momentum; gloo's all-reduce needs no copy.
In time, DDP sends during backward and stage 1 after it, which is what the lesson's stage 2 changes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _alive import most_alive
from _common import Row, add_rounds, compared, median, report, told
from _device import Device, asked_device, device_arguments, device_of, gpu_name
from _turns import take_turns
from torch import Tensor, nn

import labkit
from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import Submission, collect
from labkit.record.live import bytes_of_process

LAYERS = 6
SHAPES = {"cpu": (32, (384, 128)), "cuda": (4096, (4096, 1024))}  # rows a rank, widths
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


def make_model(width: int, group: dist.ProcessGroup) -> nn.Sequential:
    """The same weights on every rank and each time."""
    torch.manual_seed(0)
    layers = (
        nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)) for _ in range(LAYERS)
    )
    return nn.Sequential(*layers).to(device_of(group).kind)


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
    model = make_model(width, group)
    optimizer = student.ShardedOptimizer(
        model.parameters(), torch.optim.SGD, group, lr=RATE, momentum=MOMENTUM
    )
    return stepper(model, x, optimizer), lambda: list(model.parameters())


def torchs_stage_1(student: Any, width: int, x: Tensor, group: dist.ProcessGroup) -> tuple[Step, Weights]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(make_model(width, group), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, process_group=group, lr=RATE, momentum=MOMENTUM
    )
    return stepper(model, x, optimizer), lambda: list(model.parameters())


# -- stages 2 and 3


def our_stage_2(student: Any, width: int, x: Tensor, group: dist.ProcessGroup) -> tuple[Step, Weights]:
    model = make_model(width, group)
    sharded = student.ShardedGradients(model, group, unit_bytes(width))
    return stepper(model, x, sgd(sharded.shards), sharded.gather_weights), lambda: list(model.parameters())


def our_stage_3(student: Any, width: int, x: Tensor, group: dist.ProcessGroup) -> tuple[Step, Weights]:
    model = make_model(width, group)
    sharded = student.FullyShardedModule(model, list(model), group)
    return stepper(sharded, x, sgd(sharded.shards)), lambda: list(sharded.full_weights().values())


def torchs_stage(
    reshard: bool, student: Any, width: int, x: Tensor, group: dist.ProcessGroup
) -> tuple[Step, Weights]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = make_model(width, group), DeviceMesh.from_group(group, device_of(group).kind)
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
    device = device_of(group).kind
    return torch.randn(SHAPES[device][0], width, device=device)


def race(
    submission: Submission,
    contenders: tuple[Contender, Contender],
    width: int,
    rounds: int,
    group: dist.ProcessGroup,
) -> tuple[list[float], list[float], float]:
    """Seconds of each round of ours and of theirs, and the largest difference of a weight at the end."""
    student, x, device = submission.load(), own_rows(width, group), device_of(group)
    pair = [contender(student, width, x, group) for contender in contenders]
    steps = {who: step for who, (step, _) in zip(("ours", "theirs"), pair, strict=True)}
    seconds = take_turns(steps, rounds, 3, device.now, partial(dist.barrier, group))
    ours, theirs = (weights() for _, weights in pair)
    apart = max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
    return seconds["ours"], seconds["theirs"], apart


def peak(submission: Submission, contender: Contender, width: int, group: dist.ProcessGroup) -> float:
    """Most bytes alive in a step, the median of three steps, without what was there before."""
    student, x = submission.load(), own_rows(width, group)
    before = bytes_of_process()
    step, _ = contender(student, width, x, group)
    step()
    step()
    return median([most_alive(step) - before for _ in range(3)])


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
    mesh = DeviceMesh.from_group(group, device_of(group).kind)
    torch.manual_seed(0)
    device = device_of(group)
    flats = {name: torch.randn(total, device=device.kind) for name in ("weights", "momentum")}
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
                start = device.now()
                call(f"{directory}/{who}")
                dist.barrier(group)
                if number:
                    seconds[f"{who} {what}"].append(device.now() - start)
    equal = all(torch.equal(back[name], empty[name].to_local().cpu()) for name in flats)
    return {**seconds, "equal": equal}


# -- rows


def rows_of(device: Device, stage: str, ranks: int, width: int, rounds: int) -> list[Row]:
    exercise, ours, theirs, peer = PAIRS[stage]
    submission, about = solution(exercise), f"{ranks} ranks, {2 * LAYERS} layers {width} wide"
    job = labkit.launch(
        measured,
        submission,
        (ours, theirs),
        width,
        rounds,
        ranks=ranks,
        backend=device.backend,
        record=False,
        timeout=500,
    )
    mine, other, apart = job.results[0][1]
    held = [max(result[0][which] for result in job.results) for which in (0, 1)]
    target = TARGETS[stage] if ranks > 1 else None
    note = f"weights differ by {apart:.1g}"
    timed = compared(f"step of {stage}, {about}", mine, other, peer, note, target)
    ratio, megabytes = held[1] / held[0], [num_bytes / 1e6 for num_bytes in held]
    return [timed, Row(f"peak of {stage}, {about}", *megabytes, "MB", ratio, target, peer, "tensors alive")]


def checkpoint_rows(device: Device, ranks: int, total: int, rounds: int) -> list[Row]:
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
            backend=device.backend,
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
    about, target = f"{ranks} ranks, 2 x {total / 1e6:g} million numbers", 1.0 if ranks > 1 else None
    note = f"the same shards back: {found['equal']}"
    rows = [
        compared(f"{what}, {about}", found[f"ours {what}"], found[f"theirs {what}"], peer, note, target)
        for what in ("save", "resume")
    ]
    return [*rows, Row(f"size, {about}", *sizes, "MB", sizes[1] / sizes[0], target, peer, "on disk")]


def main() -> None:
    parser = device_arguments(__doc__)
    add_rounds(parser, 60)
    options = parser.parse_args()
    rounds, device = options.rounds, asked_device(options.device)
    rows = [
        row
        for stage in PAIRS
        for width in SHAPES[device.kind][1]
        for ranks in device.sizes()
        for row in rows_of(device, stage, ranks, width, rounds)
    ]
    rows += [
        row
        for ranks in device.sizes()
        for row in checkpoint_rows(device, ranks, 1_000_000, max(5, rounds // 3))
    ]
    report("sharding", rows, options.json, gpu_name() if device.kind == "cuda" else "")
    print(told(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
