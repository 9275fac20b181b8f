"""All parts of lesson 08 together: stage 3 on some ranks, saved in shards, and resumed on fewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_08.disk import exchange_files, own_disk
from labkit.checks.lesson_08.net import STEPS, answer_weights, handed_net, loss_of, net_of
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import same
from labkit.checks.shared.split import drawn, loaded, under

MOMENTUM, RATE, MAX_NORM = 0.9, 0.3, 0.4


def train_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """full.NAME, the whole net's parameters; x and target: [ranks, steps, rows, width]."""
    found: Inputs = {
        f"full.{name}": drawn(case, generator, *tensor.shape) / tensor.shape[-1] ** 0.5
        for name, tensor in net_of(case).named_parameters()
    }
    shape = (case.ranks, STEPS, case.params["rows"], case.params["width"])
    return found | {name: drawn(case, generator, *shape) for name in ("x", "target")}


def hand_rows(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """The whole net, and the rank's own rows of each step."""
    return {name: tensor[rank] if name in ("x", "target") else tensor for name, tensor in inputs.items()}


def train_save_resume(rank: Rank) -> None:
    """A step on all ranks, a checkpoint, and the rest on `resume_on` of them. Answers: weights STEP.NAME.
    Recordings: "first step" and "save", for the grader alone: own parts may communicate in another way.
    """
    run = _Run(rank, handed_net(rank), rank.group)
    with rank.recording("first step"):
        run.step(0)
    fewer = dist.new_group(list(range(rank.params["resume_on"])))
    with own_disk() as folder:
        with rank.recording("save"):
            rank.student.save_shards(folder, 1, run.state(), run.totals, {"trained": 1}, rank.group)
        exchange_files(folder, rank.group)
        if rank.rank < rank.params["resume_on"]:
            again = _Run(rank, net_of(rank.case).to(rank.device), fewer)
            step, state, extra = rank.student.load_shards(folder, fewer)
            rank.fact("resumed", [step, extra])
            again.restore(state)
            for number in range(1, STEPS):
                again.step(number)
        dist.barrier(rank.group)


class _Run:
    """Stage 3 with momentum, clipped by the global norm: every part the student's own."""

    def __init__(self, rank: Rank, net: Any, group: dist.ProcessGroup):
        self.rank, self.group, size = rank, group, dist.get_world_size(group)
        self.totals: dict[str, int] = {}
        self.owned: list[int] = []
        for number, unit in enumerate(net.units()):
            numels = [p.numel() for p in unit.parameters()]
            _, pieces = rank.student.flat_layout(numels, size)
            own = pieces[dist.get_rank(group)]
            self.owned.append(sum(stop - start for _, start, stop in own))
            self.totals |= {f"weights.{number}": sum(numels), f"momentum.{number}": sum(numels)}
        self.sharded = rank.student.FullyShardedModule(net, net.units(), group)
        self.momentum = [torch.zeros_like(shard) for shard in self.sharded.shards]

    def step(self, number: int) -> None:
        """One step on this rank's rows."""
        x, target = (self.rank.inputs[name][number] for name in ("x", "target"))
        loss_of(self.sharded(x), target).backward()
        self.rank.student.clip_grad_norm(self.sharded.shards, self.owned, [], MAX_NORM, self.group)
        with torch.no_grad():
            for shard, moment in zip(self.sharded.shards, self.momentum, strict=True):
                moment.mul_(MOMENTUM).add_(shard.grad)
                shard.sub_(RATE * moment)
                shard.grad = None
        answer_weights(self.rank, self.sharded.full_weights(), number)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        weights = {f"weights.{n}": shard for n, shard in enumerate(self.sharded.shards)}
        return weights | {f"momentum.{n}": moment for n, moment in enumerate(self.momentum)}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        for n, shard in enumerate(self.sharded.shards):
            shard.copy_(state[f"weights.{n}"])
            self.momentum[n].copy_(state[f"momentum.{n}"])


def goes_on(evidence: Evidence) -> Iterator[Finding]:
    """Weights as in one process, which takes the ranks' rows that were there in each step."""
    case, net = evidence.case, net_of(evidence.case)
    loaded(net, under("full.", evidence.inputs))
    momentum = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for step in range(STEPS):
        ranks = range(case.ranks if step == 0 else case.params["resume_on"])
        _plain_step(net, momentum, evidence.inputs, step, ranks)
        for answer in evidence.answers[: len(ranks)]:
            for name, weight in net.named_parameters():
                told = f"{name} after step {step + 1} (saved on {case.ranks} ranks after step 1)"
                yield same(told, weight.detach(), answer, f"weights {step}.{name}")


def _plain_step(
    net: Any, momentum: Mapping[str, Tensor], inputs: Inputs, step: int, ranks: Sequence[int]
) -> None:
    net.zero_grad()
    losses = [loss_of(net(inputs["x"][rank, step]), inputs["target"][rank, step]) for rank in ranks]
    torch.stack(losses).mean().backward()
    nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
    with torch.no_grad():
        for name, p in net.named_parameters():
            momentum[name].mul_(MOMENTUM).add_(p.grad)
            p.sub_(RATE * momentum[name])


def own_parts_case(name: str, ranks: int, resume_on: int, seed: int) -> Case:
    """Stage 3 with the student's own parts, saved and resumed."""
    sizes = {"width": 3, "inner": 5, "rows": 4, "resume_on": resume_on}
    return Case(name, ranks, sizes, seed, kind="own-parts", own_parts=True, timeout=60.0)
