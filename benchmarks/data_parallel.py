"""Lesson 03's OverlappedDataParallel against PyTorch's DistributedDataParallel: the time of a training step.

    python benchmarks/data_parallel.py [--json] [--rounds 150]

Same model, data, buckets (two layers fill one) and ranks, in one job. The two take turns, each first in every
second round, and a step lasts from a barrier to a barrier. ratio: how many times faster ours is, the median
over the rounds; no slower than 1.05 times means at least 0.952.

Where a job's tensors happen to lie makes up to 5% between DistributedDataParallel and itself: so the rounds
are those of several jobs. A quarter of the weights is measured too, without a target.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from _common import Row, add_rounds, arguments, median, report, spread
from _turns import take_turns
from torch import Tensor, nn

import labkit
from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import Submission, collect

WIDTH, SMALL_WIDTH, LAYERS, ROWS = 1024, 512, 6, 64
TARGET = 1 / 1.05
JOBS = 5


def solution() -> Submission:
    """The lesson's reference solution, to be loaded on the ranks."""
    return collect(reference_cells("03"), "03.overlapped-data-parallel", ["OverlappedDataParallel"])


def make_model(width: int) -> nn.Module:
    """The same weights on every rank and each time."""
    torch.manual_seed(0)
    return nn.Sequential(*[m for _ in range(LAYERS) for m in (nn.Linear(width, width), nn.Tanh())])


def bucket_bytes(width: int) -> int:
    """Of two layers."""
    return 2 * 4 * (width * width + width)


def step_of(model: nn.Module, x: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    return step


def race(
    submission: Submission, width: int, rounds: int, group: dist.ProcessGroup
) -> tuple[list[float], list[float], float]:
    """Seconds of each round of ours and of theirs, and the largest difference of a weight at the end."""
    size = bucket_bytes(width)
    ours = submission.load().OverlappedDataParallel(make_model(width), group, size)
    theirs = nn.parallel.DistributedDataParallel(
        make_model(width), process_group=group, bucket_cap_mb=size / 2**20
    )
    torch.manual_seed(1 + dist.get_rank(group))
    x = torch.randn(ROWS, width)
    steps = {"ours": step_of(ours, x), "theirs": step_of(theirs, x)}
    seconds = take_turns(steps, rounds, warm_up=3, barrier=partial(dist.barrier, group))
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return seconds["ours"], seconds["theirs"], max((a - b).abs().max().item() for a, b in pairs)


def compared(ranks: int, width: int, rounds: int, target: float | None) -> Row:
    ours: list[float] = []
    theirs: list[float] = []
    difference = 0.0
    for _ in range(JOBS):
        job = labkit.launch(race, solution(), width, rounds // JOBS, ranks=ranks, record=False, timeout=300)
        ours += job.results[0][0]
        theirs += job.results[0][1]
        difference = max(difference, job.results[0][2])
    ratio = median([b / a for a, b in zip(ours, theirs, strict=True)])
    note = f"ours {spread([s * 1e3 for s in ours])}, theirs {spread([s * 1e3 for s in theirs])}"
    note += f"; weights differ by {difference:.1g}"
    what = f"training step, {ranks} ranks, {LAYERS} layers {width} wide"
    peer = "torch DistributedDataParallel"
    return Row(what, median(ours) * 1e3, median(theirs) * 1e3, "ms", ratio, target, peer, note)


def main() -> None:
    parser = arguments(__doc__)
    add_rounds(parser, 150, least=2 * JOBS)
    options = parser.parse_args()
    sizes = ((WIDTH, TARGET), (SMALL_WIDTH, None))
    rows = [compared(ranks, width, options.rounds, target) for width, target in sizes for ranks in (2, 4)]
    report("data_parallel", rows, options.json)


if __name__ == "__main__":
    main()
