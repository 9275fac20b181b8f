"""What a part does to its surroundings: to other parts in the process, in other groups, to what it was made
from, to the random numbers to come, and to memory that waits for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.exercise import Evidence, Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import observe
from labkit.checks.shared.held import bytes_kept
from labkit.checks.shared.split import Drawn, Split, SplitEvidence, dtype_of

PAIRS = [0, 3], [1, 2]  # of four ranks: groups in which what is beside works
SEEDS = 1, 2
COLUMNS = 256
KEPT_BYTES = 8 * COLUMNS**2  # of what is measured: far above what else may change in a process


# -- on a rank


def use_beside_another(rank: Rank, split: Split, other: Split) -> None:
    """Build the part of four ranks before and after another one, in a group of two of them, and take it
    forward and backward in evaluation mode; between these, one of its own kind is used in the group of two.

    Answers: those of `observe`. Facts: "handed over", what is another in the whole module than before, or
    that building sets the seed; "asks", whether what asked for no gradient does after it was used.
    """
    pair = [dist.new_group(members) for members in PAIRS][int(rank.rank in PAIRS[1])]
    _use_in_group(rank, other, pair)
    full = split.handed(rank)
    for parameter in full.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = _settings(full)
    randoms = [_randoms_after(seed, lambda: split.build(rank, full, rank.group)) for seed in SEEDS]
    part = split.build(rank, full, rank.group)
    changed = [name for name, seen in _settings(full).items() if seen != before[name]]
    changed += _thawed(rank, split)
    rank.fact("handed over", [*changed, *(["the seed"] if torch.equal(*randoms) else [])])
    _use_in_group(rank, other, pair)
    handed = [rank.inputs[name].clone() for name in split.arguments]
    handed = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in handed]
    gradient = rank.inputs.get("grad_output")
    observe(rank, part.eval(), handed, gradient, split.use, between=lambda: _use_in_group(rank, split, pair))
    unasked = [rank.inputs[name].clone() for name in split.arguments]
    split.use(part, unasked)
    rank.fact("asks", any(tensor.requires_grad for tensor in unasked))


def _thawed(rank: Rank, split: Split) -> list[str]:
    """Of a whole module that is frozen, what is trained once a part was made of it."""
    frozen = split.handed(rank).requires_grad_(False)
    split.build(rank, frozen, rank.group)
    return [name for name, parameter in frozen.named_parameters() if parameter.requires_grad]


def _use_in_group(rank: Rank, split: Split, group: dist.ProcessGroup) -> None:
    """A part of a whole module of the same sizes, in another group, without gradients. What fails there is
    about groups.
    """
    about = split.drawn(rank.case)
    handed = [_ones(rank, about[name], group.size()) for name in split.arguments]
    with rank.attempt("subgroup"), torch.no_grad():
        split.use(split.build(rank, split.handed(rank), group), handed)


def _ones(rank: Rank, about: Drawn, size: int) -> Tensor:
    """What is drawn, but ones, and as a rank of a group of that size has it."""
    shape = list(about.shape)
    if about.cut is not None:
        shape[about.cut] //= size
    return torch.ones(shape, dtype=torch.int64 if about.below else dtype_of(rank.case), device=rank.device)


def _settings(full: nn.Module) -> dict[str, tuple[bool, int, float]]:
    """Of each parameter: whether it is trained, and its gradient, as its place and sum."""
    return {
        name: (p.requires_grad, id(p.grad), 0.0 if p.grad is None else p.grad.sum().item())
        for name, p in full.named_parameters()
    }


def _randoms_after(seed: int, build: Callable[[], object]) -> Tensor:
    torch.manual_seed(seed)
    build()
    return torch.rand(4)


def operator_keeps(operator: Any, group: dist.ProcessGroup, dtype: torch.dtype = torch.float64) -> int:
    """Bytes that are there between forward and backward of `operator.apply(x, group)`, beside the end of the
    graph, where what went in and what came out have been let go. x has `KEPT_BYTES` in any dtype.
    """
    leaf = torch.ones(KEPT_BYTES // dtype.itemsize // COLUMNS, COLUMNS, dtype=dtype, requires_grad=True)
    return bytes_kept(lambda: lambda: operator.apply(leaf * 2.0, group).sum())


# -- judges


def gives_in_evaluation(evidence: SplitEvidence) -> Iterator[Finding]:
    """The output in evaluation mode, of a forward that has a graph, and an x that asks for no gradient does
    not by being used.
    """
    for answer in evidence.answers:
        yield evidence.activation("output", answer)
        told = "what was handed over asking for no gradient, as before"
        yield Finding(not answer.facts["asks"], told, "requires_grad is set", answer.rank)


def leaves_the_whole(evidence: SplitEvidence) -> Iterator[Finding]:
    """Making a part changed nothing about the whole it is of, nor the random numbers to come."""
    for answer in evidence.answers:
        changed = answer.facts["handed over"]
        told = "what was handed over as it was: gradients, which parameters are trained; no new seed"
        yield Finding(not changed, told, f"another {', '.join(changed)}", answer.rank)


def keeps_nothing(*facts: str) -> Callable[[Evidence], Iterator[Finding]]:
    """Of operators, no tensor waits for backward; facts: what `operator_keeps` gave for each."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            for fact in facts:
                told = f"nothing kept for backward (x has {KEPT_BYTES:,} bytes)"
                kept = answer.facts[fact]
                yield Finding(kept < KEPT_BYTES / 4, told, f"{kept:,} bytes", answer.rank)

    return judge
