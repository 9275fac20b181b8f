"""Lesson 12's layer of experts: without drops against a padded capacity, and bytes against the formula.

    python benchmarks/experts.py [--json] [--device cuda] [--rounds 40]

Ours is the lesson's reference, which sends the rows there are. Beside it stands GShard's way, built here from
the same parts: a capacity for each expert from each rank, empty rows where there are fewer, equal messages. A
factor that drops nothing is the smallest that fits the busiest expert; with factor 1.25 the note says what is
dropped, which ours is not. Tokens are drawn apart (experts are visited about evenly) or with a part in common
(as a text's are; some experts are visited much more often). The two take turns, each first in every second
round; a step is forward and backward, from a barrier to a barrier. ratio: how many times faster ours is, or
how many times fewer bytes leave the rank that sends most.

The products of all experts: `torch.nn.functional.grouped_mm`, one call for all, against a loop over experts,
in one process. ratio: how many times faster the one call is; without that function the row is empty.

Bytes against the formula: a router that visits every expert equally often; what the record says has left a
rank in forward, against `labkit.theory.experts.dispatch_sent`. ratio must be 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from _common import Row, add_rounds, compared, report, told
from _device import Device, asked_device, device_arguments, device_of, gpu_name
from _turns import take_turns
from torch import Tensor, nn

import labkit
from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import Submission, collect
from labkit.theory.experts import dispatch_sent
from labkit.theory.models import MixtureOfExperts, llama

EXPERTS, ACTIVE = 8, 2
SHAPES = {"cpu": (512, ((64, 128), (256, 512))), "cuda": (8192, ((1024, 2048), (4096, 4096)))}
USUAL_FACTOR = 1.25
COMMON = {"drawn apart": 0.0, "with a part in common": 0.5}
GROUPED_ROWS = {"cpu": 4096, "cuda": 65_536}
Layer = Callable[[Tensor], Tensor]


def solution() -> Submission:
    """The lesson's reference, to be loaded on the ranks."""
    names = ["route", "permute", "unpermute", "AllToAll", "ExpertParallel", "expert_capacity", "drop"]
    return collect(reference_cells("12"), "12.capacity", names)


def make_expert(width: int, ffn: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, ffn), nn.Tanh(), nn.Linear(ffn, width))


class Padded(nn.Module):
    """GShard's way (arXiv 2006.16668): as many rows for each expert from each rank, whatever there is."""

    def __init__(
        self, student: Any, router: Tensor, experts: list[nn.Module], factor: float, group: dist.ProcessGroup
    ):
        super().__init__()
        self.student, self.router, self.group = student, router, group
        self.experts, self.factor = nn.ModuleList(experts), factor

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, h] -> [n, h]."""
        student, total = self.student, len(self.router)
        gates, chosen, _ = student.route(tokens, self.router, ACTIVE)
        capacity = student.expert_capacity(len(tokens), ACTIVE, total, self.factor)
        gates = student.drop(gates, chosen, total, capacity)
        rows, places, _ = student.permute(tokens, chosen, total)
        kept = (gates.flatten()[places] > 0).nonzero().squeeze(1)
        expert = chosen.flatten()[places][kept]
        first = torch.searchsorted(expert, torch.arange(total, device=expert.device))
        slots = expert * capacity + torch.arange(len(kept), device=expert.device) - first[expert]
        packed = rows.new_zeros(total * capacity, rows.shape[1]).index_copy(0, slots, rows[kept])
        back = self._there_and_back(packed, capacity)
        return student.unpermute(torch.zeros_like(rows).index_copy(0, kept, back[slots]), places, gates)

    def _there_and_back(self, packed: Tensor, capacity: int) -> Tensor:
        """Through the experts, [E capacity, h]: equal messages there, equal messages back."""
        ranks, local = dist.get_world_size(self.group), len(self.experts)
        splits = [local * capacity] * ranks
        arrived = self.student.AllToAll.apply(packed, splits, splits, self.group)
        parts = arrived.view(ranks, local, capacity, -1).unbind(1)
        outs = [e(part.flatten(0, 1)) for e, part in zip(self.experts, parts, strict=True)]
        done = torch.stack([out.view(ranks, capacity, -1) for out in outs], dim=1)
        return self.student.AllToAll.apply(done.flatten(0, 2), splits, splits, self.group)


# -- on the ranks


def own_tokens(count: int, width: int, common: float, group: dist.ProcessGroup) -> Tensor:
    generator = torch.Generator().manual_seed(1 + dist.get_rank(group))
    shared = torch.randn(width, generator=torch.Generator().manual_seed(0))
    tokens = torch.randn(count, width, generator=generator) + common * shared
    return tokens.to(device_of(group).kind)


def layers(
    student: Any, width: int, ffn: int, factor: float, group: dist.ProcessGroup
) -> tuple[Layer, Layer, Tensor]:
    """Ours, the padded one, with the same weights, and the router."""
    torch.manual_seed(0)
    router = nn.Parameter(torch.randn(EXPERTS, width) / width**0.5)
    whole = nn.ModuleList(make_expert(width, ffn) for _ in range(EXPERTS)).to(device_of(group).kind)
    router = nn.Parameter(router.detach().to(device_of(group).kind))
    local = EXPERTS // dist.get_world_size(group)
    own = list(whole)[dist.get_rank(group) * local :][:local]
    ours = student.ExpertParallel(router, own, ACTIVE, group)
    return ours, Padded(student, router, own, factor, group), router


def factor_without_drops(student: Any, tokens: Tensor, router: Tensor, group: dist.ProcessGroup) -> float:
    """The smallest that gives the busiest expert of any rank room."""
    _, chosen, _ = student.route(tokens, router, ACTIVE)
    busiest = torch.bincount(chosen.flatten(), minlength=EXPERTS).max()
    dist.all_reduce(busiest, dist.ReduceOp.MAX, group=group)
    return int(busiest) * EXPERTS / (ACTIVE * len(tokens))


def race(
    submission: Submission,
    shape: tuple[int, int, int],
    common: float,
    factor: float | None,
    rounds: int,
    group: dist.ProcessGroup,
) -> dict[str, Any]:
    """Seconds of each round of both, the factor, what part of visits it drops, and how far outputs differ."""
    count, width, ffn = shape
    student, device = submission.load(), device_of(group)
    tokens = own_tokens(count, width, common, group)
    _, _, router = layers(student, width, ffn, 1.0, group)
    factor = factor_without_drops(student, tokens, router, group) if factor is None else factor
    ours, padded, _ = layers(student, width, ffn, factor, group)

    def step(layer: Layer) -> None:
        layer(tokens).square().mean().backward()

    steps = {"ours": partial(step, ours), "padded": partial(step, padded)}
    seconds = take_turns(steps, rounds, 3, device.now, partial(dist.barrier, group))
    gates, chosen, _ = student.route(tokens, router, ACTIVE)
    kept = student.drop(gates, chosen, EXPERTS, student.expert_capacity(count, ACTIVE, EXPERTS, factor))
    apart = float((ours(tokens) - padded(tokens)).detach().abs().max())
    return {
        **seconds,
        "factor": factor,
        "dropped": float((kept == 0).double().mean()),
        "apart": apart,
        "rows": int(chosen.numel()),
        "padded_rows": EXPERTS * student.expert_capacity(count, ACTIVE, EXPERTS, factor),
    }


def send_evenly(submission: Submission, shape: tuple[int, int, int], group: dist.ProcessGroup) -> None:
    """One forward in which every expert is visited as often by every rank."""
    count, width, ffn = shape
    student = submission.load()
    ours, _, router = layers(student, width, ffn, 1.0, group)
    with torch.no_grad():
        router.copy_(torch.eye(EXPERTS, width))
    tokens = torch.zeros(count, width, device=router.device)
    for choice in range(ACTIVE):
        visited = (torch.arange(count) + choice) % EXPERTS
        tokens[torch.arange(count), visited] = 5.0 - choice
    ours(tokens)


# -- rows


def race_rows(device: Device, ranks: int, rounds: int) -> list[Row]:
    rows = []
    count, shapes = SHAPES[device.kind]
    for width, ffn in shapes:
        for drawn, common in COMMON.items():
            for factor in (None, USUAL_FACTOR):
                job = labkit.launch(
                    race,
                    solution(),
                    (count, width, ffn),
                    common,
                    factor,
                    rounds,
                    ranks=ranks,
                    backend=device.backend,
                    record=False,
                    timeout=500,
                )
                about = f"{ranks} ranks, {width} wide, tokens {drawn}"
                rows += raced(about, job.results, factor is None)
    return rows


def raced(about: str, results: list[dict[str, Any]], without_drops: bool) -> list[Row]:
    """The step's time and, where nothing is dropped, the rows that are sent."""
    found = results[0]
    dropped = fmean(result["dropped"] for result in results)
    apart = max(result["apart"] for result in results)
    note = f"drops {dropped:.1%} of visits" if dropped else f"outputs differ by {apart:.1g}"
    peer = f"capacity factor {found['factor']:.3g}"
    timed = compared(
        f"step, {about}", found["ours"], found["padded"], peer, note, 1.0 if without_drops else None
    )
    if not without_drops:
        return [timed]
    ours, theirs = found["rows"], found["padded_rows"]
    return [timed, Row(f"rows of a rank, {about}", ours, theirs, "rows", theirs / ours, 1.0, peer)]


def formula_row(device: Device, ranks: int) -> Row:
    count, ((width, ffn), *_) = SHAPES[device.kind]
    job = labkit.launch(
        send_evenly, solution(), (count, width, ffn), ranks=ranks, backend=device.backend, timeout=200
    )
    left = [
        sum(num_bytes for peer, num_bytes in zip(call.group, call.sent, strict=True) if peer != call.rank)
        for call in job.collectives
        if call.rank == 0 and call.op == "all_to_all" and call.dtype == "float32" and call.sent
    ]
    model = llama(1, width, 1, 1, ffn, mixture=MixtureOfExperts(EXPERTS, ACTIVE, ffn))
    formula = dispatch_sent(model, count, ranks, element=4).forward
    name = f"bytes that leave a rank in forward, {ranks} ranks, {width} wide"
    return Row(name, sum(left), formula, "bytes", formula / sum(left), 1.0, "dispatch_sent")


def grouped_row(device: Device, width: int, ffn: int, dtype: torch.dtype, rounds: int) -> Row:
    """All experts' products at once against one after the other, forward, in this process."""
    name = f"products of {EXPERTS} experts, {width} x {ffn}, {str(dtype).removeprefix('torch.')}"
    grouped = getattr(torch.nn.functional, "grouped_mm", None)
    if grouped is None:
        return Row(name, 0.0, None, "ms", None, None, "a loop over experts", "this torch has no grouped_mm")
    generator = torch.Generator().manual_seed(0)
    total = GROUPED_ROWS[device.kind]
    counts = torch.multinomial(torch.arange(1.0, EXPERTS + 1), total, True, generator=generator).bincount()
    rows = torch.randn(total, width, generator=generator).to(device.kind, dtype)
    weights = torch.randn(EXPERTS, width, ffn, generator=generator).to(device.kind, dtype)
    ends, sizes = counts.cumsum(0).to(device.kind, torch.int32), counts.tolist()

    def at_once() -> Tensor:
        return grouped(rows, weights, offs=ends)

    def one_by_one() -> Tensor:
        return torch.cat([part @ weight for part, weight in zip(rows.split(sizes), weights, strict=True)])

    seconds = take_turns({"ours": at_once, "theirs": one_by_one}, rounds, 3, device.now)
    apart = float((at_once() - one_by_one()).abs().max() / one_by_one().abs().max())
    note = f"differ by {apart:.1g} of the largest"
    return compared(name, seconds["ours"], seconds["theirs"], "a loop over experts", note, None)


def main() -> None:
    parser = device_arguments(__doc__)
    add_rounds(parser, 40)
    options = parser.parse_args()
    rounds, device = options.rounds, asked_device(options.device)
    sizes = [ranks for ranks in device.sizes(least=2) if EXPERTS % ranks == 0]
    rows = [row for ranks in sizes for row in race_rows(device, ranks, rounds)]
    rows += [formula_row(device, ranks) for ranks in sizes]
    rows += [
        grouped_row(device, width, ffn, dtype, rounds)
        for width, ffn in SHAPES[device.kind][1]
        for dtype in (torch.float32, torch.bfloat16)
    ]
    report("experts", rows, options.json, gpu_name() if device.kind == "cuda" else "")
    print(told(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
