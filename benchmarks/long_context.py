"""Lesson 11's ring and its Ulysses against PyTorch's private ring and against gathering keys: time and bytes.

    python benchmarks/long_context.py [--json] [--rounds 40] [--tokens 2048 8192]

Forward and backward of causal attention over one sequence, 8 heads of 64 in float32, on 2 and on 4 ranks of
one job, the CPU's under gloo. All take turns, each first in every second round; a turn lasts from a barrier
to a barrier, and their outputs and gradients are compared first. All of them compute with the same fused CPU
operation, which gives its own lse and backward; the lesson's own blocks, which show every step, are timed
beside it without a target.

ratio: how many times faster ours is, the median over the rounds, with its 95% interval in the note: where the
target lies inside it, this run cannot tell. The target of time, 1/1.1, allows a tenth more than theirs. Peak
bytes are those of the tensors alive after each operation, counted exactly, of the rank that has most; there
the target is to need fewer than gathering does.

PyTorch's ring is made of private functions: it takes an attention operation for blocks, which for GPUs is its
public `context_parallel`. It is told to send keys round (`alltoall`); by itself it gathers them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from _alive import most_alive
from _common import Row, add_rounds, arguments, compared, median, report, told
from _turns import take_turns
from torch import Tensor

import labkit
from autograder.grade.reference import reference_cells
from labkit.checks.source.submission import Submission, collect
from labkit.record.live import bytes_of_process

HEADS, HEAD_SIZE = 8, 64
RANKS = (2, 4)
NAMES = ("RingAttention", "ulysses_attention", "torchs_ring", "own_tokens", "block_pairs", "start_passing")
TIME_TARGET = 1 / 1.1
Contender = Callable[[Any, list[Tensor], dist.ProcessGroup], list[Tensor]]
"""(student, own q, k, v and gradient of the output, group) -> output, gradients of q, k and v."""


def solution() -> Submission:
    """The lesson's references, to be loaded on the ranks."""
    return collect(reference_cells("11"), "11.ring-attention", NAMES)


def fused_block(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> tuple[Tensor, Tensor]:
    """A block as `attend_block` of the lesson gives it, by the fused operation."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = attend(q, k, v, 0.0, diagonal)
    return out, lse


class FusedRing(torch.autograd.Function):
    """The lesson's RingAttention, step by step, with the fused operation for every block."""

    @staticmethod
    def forward(ctx: Any, student: Any, group: dist.ProcessGroup, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = student.ring_forward(q, k, v, group, fused_block)
        ctx.student, ctx.group = student, group
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[None, None, Tensor, Tensor, Tensor]:
        student, group = ctx.student, ctx.group
        q, k, v, out, lse = ctx.saved_tensors
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        rows = list(zip(*(t.chunk(2, dim=2) for t in (grad_out, q, out, lse)), strict=True))
        grad_q, held, sums = torch.zeros_like(q), [k, v], [torch.zeros_like(k), torch.zeros_like(v)]
        for step in range(ranks):
            passing = student.start_passing(held, group) if step < ranks - 1 else (held, [])
            keys = list(zip(*(t.chunk(2, dim=2) for t in held), strict=True))
            for i, j, diagonal in student.block_pairs(rank, (rank - step) % ranks, ranks):
                for total, gradient in zip(
                    (grad_q, *sums), block_gradients(rows[i], keys[j], diagonal), strict=True
                ):
                    total.chunk(2, dim=2)[i if total is grad_q else j].add_(gradient)
            arriving = student.start_passing(sums, group)
            for work in passing[1] + arriving[1]:
                work.wait()
            held, sums = passing[0], arriving[0]
        return None, None, grad_q, *sums


def block_gradients(
    rows: tuple[Tensor, ...], keys: tuple[Tensor, ...], diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv of one block. rows: gradient of the output, queries, output, lse of the whole rows."""
    grad_out, q, out, lse = rows
    differentiate = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    dq, dk, dv = differentiate(grad_out, q, *keys, out, lse.contiguous(), 0.0, diagonal)
    return dq, dk, dv


class Gathered(torch.autograd.Function):
    """Keys and values of everybody, and in backward the sums of their gradients back to their ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        """[b, k, c, d] -> [b, k, n c, d], in the order of the ranks."""
        ctx.group = group
        pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(pieces, tensor, group=group)
        return torch.cat(pieces, dim=2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        pieces = [piece.contiguous() for piece in gradient.chunk(dist.get_world_size(ctx.group), dim=2)]
        own = torch.empty_like(pieces[0])
        dist.reduce_scatter(own, pieces, group=ctx.group)
        return own, None


# -- contenders


def differentiated(attend: Callable[[Tensor, Tensor, Tensor], Tensor], own: list[Tensor]) -> list[Tensor]:
    """Output and gradients of an attention that autograd knows."""
    leaves = [t.detach().requires_grad_() for t in own[:3]]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, own[3])]


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's attention over a whole sequence."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def our_ring(student: Any, own: list[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    return differentiated(lambda q, k, v: FusedRing.apply(student, group, q, k, v), own)


def lessons_ring(student: Any, own: list[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    return differentiated(lambda q, k, v: student.RingAttention.apply(q, k, v, group), own)


def torchs_ring(student: Any, own: list[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    found: list[Tensor] = student.torchs_ring(*own, group)
    return found


def gathering(student: Any, own: list[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    """Each half of a rank's queries against all keys up to its own, in the sequence's order."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    size = own[0].shape[2] // 2
    places = torch.tensor([p for r in range(ranks) for p in student.own_tokens(2 * ranks * size, r, ranks)])

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (Gathered.apply(t, group)[:, :, places.argsort()] for t in (k, v))
        outs = []
        for half, chunk in zip(q.chunk(2, dim=2), (rank, 2 * ranks - 1 - rank), strict=True):
            end = (chunk + 1) * size
            sees = torch.ones(size, end, dtype=torch.bool).tril(chunk * size)
            outs.append(F.scaled_dot_product_attention(half, keys[:, :, :end], values[:, :, :end], sees))
        return torch.cat(outs, dim=2)

    return differentiated(attend, own)


def our_ulysses(student: Any, own: list[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    return differentiated(lambda q, k, v: student.ulysses_attention(q, k, v, group, causal), own)


PEER, GATHERED, SHOWN = "PyTorch's private ring", "gathering keys", "the lesson's blocks"
CONTENDERS: dict[str, Contender] = {
    "ring": our_ring,
    "Ulysses": our_ulysses,
    PEER: torchs_ring,
    GATHERED: gathering,
    SHOWN: lessons_ring,
}
CONTIGUOUS = ("Ulysses",)  # the others have their tokens in a zigzag

# -- on the ranks


def own_of(name: str, student: Any, tokens: int, group: dist.ProcessGroup) -> tuple[list[Tensor], Tensor]:
    """This rank's q, k, v and gradient of the output, and their places in the sequence."""
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    whole = [torch.randn(1, HEADS, tokens, HEAD_SIZE) for _ in range(4)]
    places = torch.tensor(student.own_tokens(tokens, rank, ranks))
    if name in CONTIGUOUS:
        places = torch.arange(tokens).chunk(ranks)[rank]
    return [t[:, :, places].contiguous() for t in whole], places


def furthest(names: Sequence[str], student: Any, tokens: int, group: dist.ProcessGroup) -> dict[str, float]:
    """How far each is from attention over the whole sequence in one process, relative to the largest."""
    torch.manual_seed(0)
    *leaves, grad = [torch.randn(1, HEADS, tokens, HEAD_SIZE) for _ in range(4)]
    whole = differentiated(causal, [*leaves, grad])
    found = {}
    for name in names:
        own, places = own_of(name, student, tokens, group)
        pairs = zip(CONTENDERS[name](student, own, group), whole, strict=True)
        found[name] = max(float((a - b[:, :, places]).abs().max() / b.abs().max()) for a, b in pairs)
    return found


def race(
    names: Sequence[str], student: Any, tokens: int, rounds: int, group: dist.ProcessGroup
) -> dict[str, list[float]]:
    """Seconds of each round of each contender."""
    own = {name: own_of(name, student, tokens, group)[0] for name in names}
    steps = {name: partial(CONTENDERS[name], student, own[name], group) for name in names}
    return take_turns(steps, rounds, warm_up=2, barrier=partial(dist.barrier, group))


def peak(name: str, student: Any, tokens: int, group: dist.ProcessGroup) -> float:
    """Most bytes alive in a forward and backward, the median of three, without what was there before."""
    own, _ = own_of(name, student, tokens, group)
    run = partial(CONTENDERS[name], student, own, group)
    run()
    before = bytes_of_process()
    return median([most_alive(run) - before for _ in range(3)])


def measured(
    submission: Submission, names: Sequence[str], tokens: int, rounds: int, group: dist.ProcessGroup
) -> dict[str, dict[str, Any]]:
    """Everything that is measured of one length on this job's ranks, by contender."""
    student = submission.load()
    return {
        "apart": furthest(names, student, tokens, group),
        "peaks": {name: peak(name, student, tokens, group) for name in names},
        "seconds": race(names, student, tokens, rounds, group),
    }


# -- rows


def rows_of(
    submission: Submission, ranks: int, tokens: int, rounds: int, names: Sequence[str]
) -> tuple[list[Row], dict[str, float]]:
    """The rows of one length, and the peak bytes of each contender."""
    job = labkit.launch(
        measured, submission, names, tokens, rounds, ranks=ranks, backend="gloo", record=False, timeout=900
    )
    seconds, about = job.results[0]["seconds"], f"{ranks} ranks, {tokens} tokens"
    apart = {name: max(result["apart"][name] for result in job.results) for name in names}
    peaks = {name: max(result["peaks"][name] for result in job.results) for name in names}
    rows = []
    for name in (n for n in names if n not in (PEER, GATHERED)):
        target = None if name == SHOWN else TIME_TARGET
        note = f"within {apart[name]:.0e} of one process, theirs {apart[PEER]:.0e}"
        rows.append(compared(f"{name}, {about}", seconds[name], seconds[PEER], PEER, note, target))
        note = f"within {apart[GATHERED]:.0e} of one process"
        rows.append(compared(f"{name}, {about}", seconds[name], seconds[GATHERED], GATHERED, note, None))
        for peer in (GATHERED, PEER):
            needed = 1.0 if peer == GATHERED and target is not None else None
            megabytes = peaks[name] / 1e6, peaks[peer] / 1e6
            ratio = peaks[peer] / peaks[name]
            rows.append(
                Row(f"peak of {name}, {about}", *megabytes, "MB", ratio, needed, peer, "tensors alive")
            )
    return rows, peaks


def growth(ranks: int, shortest: int, longest: int, peaks: dict[int, dict[str, float]]) -> list[Row]:
    """How many times the bytes grow from the shortest sequence to the longest."""
    times = {name: peaks[longest][name] / peaks[shortest][name] for name in ("ring", "Ulysses", GATHERED)}
    about = f"{shortest} to {longest} tokens, {ranks} ranks"
    return [
        Row(
            f"growth of {name}'s peak, {about}",
            times[name],
            times[GATHERED],
            "times",
            times[GATHERED] / times[name],
            None,
            GATHERED,
        )
        for name in ("ring", "Ulysses")
    ]


def main() -> None:
    parser = arguments(__doc__)
    add_rounds(parser, 40)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    asked = parser.parse_args()
    submission, lengths, rows = solution(), sorted(asked.tokens), list[Row]()
    for ranks in RANKS:
        peaks = {}
        for tokens in lengths:
            names = [name for name in CONTENDERS if name != SHOWN or tokens == lengths[0]]
            found, peaks[tokens] = rows_of(submission, ranks, tokens, asked.rounds, names)
            rows += found
        if len(lengths) > 1:
            rows += growth(ranks, lengths[0], lengths[-1], peaks)
    report("long_context", rows, asked.json)
    print(told(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
