"""What training leaves behind: memory that grows from step to step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from labkit.checks.exercise import Evidence, Finding
from labkit.checks.lesson_03.net import Net
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes
from labkit.checks.shared.held import settled

WIDTH, INNER = 96, 256  # of the net: all its gradients are far more than the record of some collectives
ROWS = 2


def measured_net() -> Net:
    """A net of these sizes, in float64."""
    return Net(WIDTH, INNER).double()


def send_grown(
    rank: Rank, net: Net, step: Callable[[], object], first: Callable[[], object] | None = None
) -> None:
    """Take one step, or what is to be taken first, and then as many as the case's `more`, each from a net
    without gradients. Facts: grown, bytes that the rank has beyond what it had after the first one; one set,
    those of all gradients.
    """
    _take(net, first or step)
    before = settled()
    for _ in range(rank.params["more"]):
        _take(net, step)
    rank.fact("grown", settled() - before)
    rank.fact("one set", sum(map(nbytes, net.parameters())))


def _take(net: Net, step: Callable[[], object]) -> None:
    net.zero_grad()
    step()


def some_loss(model: nn.Module) -> Tensor:
    """A loss of the net, or of what it is wrapped in."""
    loss: Tensor = model(torch.ones(ROWS, WIDTH, dtype=torch.float64)).square().mean()
    return loss


def keeps_nothing_between(evidence: Evidence) -> Iterator[Finding]:
    """Steps leave a rank what backward alone leaves it: no copy of all gradients, nor half of one."""
    for answer in evidence.answers if "more" in evidence.case.params else ():
        grown, one_set = answer.facts["grown"], answer.facts["one set"]
        told = f"no more memory after {evidence.case.params['more']} steps than their gradients take"
        seen = f"{grown:,} bytes more, where all gradients are {one_set:,}"
        yield Finding(2 * grown < one_set, told, seen, answer.rank)


def leaves_nothing_over(evidence: Evidence) -> Iterator[Finding]:
    """A rank has no more after many steps than after one. What is made anew in each may be made before the
    old one is given up: less than one set of gradients is nothing.
    """
    for answer in evidence.answers if "more" in evidence.case.params else ():
        grown, one_set = answer.facts["grown"], answer.facts["one set"]
        told = f"no more memory after {evidence.case.params['more']} more steps"
        seen = f"{grown:,} bytes more, where all gradients are {one_set:,}"
        yield Finding(grown < one_set, told, seen, answer.rank)
