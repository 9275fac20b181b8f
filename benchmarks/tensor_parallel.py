"""Lesson 07's block against DTensor's: the same shapes, weights and ranks, in one run.

    python benchmarks/tensor_parallel.py [--json] [--device cuda] [--rounds 30]

A step is one forward and one backward of one block, from a barrier to a barrier; ours and theirs take turns
in the same job, in an order that changes every round. Theirs is `parallelize_module` with the same plan, and
with `PrepareModuleInput` so that it sends what ours does; outputs and gradients are compared first. A step
ends with gradients that an optimizer can use: those that DTensor leaves as partial sums are summed. On GPUs
the block is a large one, in bfloat16, with a GPU a rank; one rank shows what both cost where nothing is sent,
and has no target.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from _common import Row, add_rounds, median, report, spread
from _device import Device, asked_device, device_arguments, gpu_name
from torch import Tensor, nn

import labkit
from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import Submission, collect
from labkit.model import Block, fused_attention, gpt

WARM_UP = 3


@dataclass(frozen=True)
class Shape:
    """A block and its input; within: how far outputs and gradients of the two may be apart, of their norm."""

    hidden: int
    heads: int
    batch: int
    sequence: int
    dtype: torch.dtype
    within: float


SHAPES = {
    "cpu": Shape(256, 8, 4, 128, torch.float32, 1e-5),
    "cuda": Shape(4096, 32, 4, 2048, torch.bfloat16, 0.05),
}


def solution() -> Submission:
    """The lesson's reference solution, to be loaded on the ranks."""
    return collect(
        reference_cells("07"), "07.tensor-parallel-block", ("TensorParallelBlock", "RandomStreams")
    )


def whole_block(device: Device) -> Block:
    """The same on every rank, without dropout."""
    torch.manual_seed(0)
    shape = SHAPES[device.kind]
    return Block(gpt(1, shape.hidden, shape.heads, dropout=0.0), fused_attention).to(device.kind, shape.dtype)


def library_block(device: Device, divided: bool, size: int) -> nn.Module:
    """A whole block, cut by parallelize_module. divided: with the tokens outside the cut regions divided."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    between = Shard(1) if divided else Replicate()
    plan: dict[str, Any] = {}
    for region in ("attention", "mlp"):
        plan[region] = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
        if divided:
            plan[f"{region}_norm"] = SequenceParallel()
    for name in ("attention.query", "attention.key", "attention.value", "mlp.up"):
        plan[name] = ColwiseParallel()
    for name in ("attention.output", "mlp.down"):
        plan[name] = RowwiseParallel(output_layouts=between)
    return parallelize_module(whole_block(device), init_device_mesh(device.kind, (size,)), plan)


def complete(parameter: nn.Parameter) -> None:
    """Sum a DTensor's gradient over the ranks where it is a partial sum; others are whole already."""
    gradient: Any = parameter.grad
    if any(placement.is_partial() for placement in getattr(gradient, "placements", ())):
        parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]


def step_times(
    submission: Submission, device: Device, divided: bool, rounds: int, group: dist.ProcessGroup
) -> dict[str, list[float]]:
    """Seconds of every step by contender. RuntimeError when the two do not compute the same."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, size, lesson = dist.get_rank(group), dist.get_world_size(group), submission.load()
    shape = SHAPES[device.kind]
    x = torch.randn(shape.batch, shape.sequence, shape.hidden, generator=torch.Generator().manual_seed(1))
    x = (x.chunk(size, dim=1)[rank].clone() if divided else x).to(device.kind, shape.dtype)
    models = {
        "ours": lesson.TensorParallelBlock(
            whole_block(device), group, lesson.RandomStreams(0, group), divided
        ),
        "theirs": library_block(device, divided, size),
    }

    def stepper(model: nn.Module) -> Callable[[], tuple[Tensor, Tensor]]:
        def step() -> tuple[Tensor, Tensor]:
            given = x.clone().requires_grad_()
            out = model(given)
            out.square().mean().backward()
            for parameter in model.parameters():
                complete(parameter)
            assert given.grad is not None
            return out.detach(), given.grad

        return step

    steps = {name: stepper(model) for name, model in models.items()}
    for one, two in zip(steps["ours"](), steps["theirs"](), strict=True):
        apart = ((one - two).norm() / two.norm()).item()  # gradients are small: no absolute bound tells
        if not apart <= shape.within:
            raise RuntimeError(f"ours and theirs differ by {apart:.1e} of their norm, not {shape.within:.0e}")
    times: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + WARM_UP):
        names = list(steps) if number % 2 else list(steps)[::-1]
        for name in names:
            models[name].zero_grad()
            dist.barrier(group=group)
            start = device.now()
            steps[name]()
            dist.barrier(group=group)
            if number >= WARM_UP:
                times[name].append(device.now() - start)
    return times


def rows(submission: Submission, device: Device, rounds: int) -> list[Row]:
    """One row for each number of ranks and plan."""
    found = []
    for size in device.sizes():
        for divided in (False, True):
            job = labkit.launch(
                step_times,
                submission,
                device,
                divided,
                rounds,
                ranks=size,
                backend=device.backend,
                timeout=300,
                record=False,
            )
            ours, theirs = job.results[0]["ours"], job.results[0]["theirs"]
            name = f"step time, one block, t={size}, tokens {'divided' if divided else 'whole'}"
            note = f"10% to 90%: {spread(ours)} against {spread(theirs)}"
            ratio, target = median(theirs) / median(ours), 1.0 if size > 1 else None
            found.append(Row(name, median(ours), median(theirs), "s", ratio, target, "DTensor", note))
    return found


def main() -> None:
    parser = device_arguments(__doc__)
    add_rounds(parser, 30)
    options = parser.parse_args()
    device = asked_device(options.device)
    found = rows(solution(), device, options.rounds)
    gpu = gpu_name() if device.kind == "cuda" else ""
    report("tensor_parallel", found, options.json, gpu)


if __name__ == "__main__":
    main()
