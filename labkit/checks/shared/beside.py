"""Runs the plain model beside the student's: the same steps in both places, and sentences about what differs.

`observe` and `train` put a module through its paces and report to a `Seat`: on a rank that is the `Rank`
itself, in the judge's process a `PlainSeat`. What both report under the same name can be compared.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.shared.places import place_of
from labkit.checks.shared.twins import each_once

LEARNING_RATE = 0.1
SCALE = 0.02  # of the sum of squares: a few steps should change weights, not blow them up
STEPS = 2
STEP_OF = {"forward": "forward in training", "backward": "backward in training"}  # as these are recorded
SLACK_BYTES = 64  # beyond its share, a module may keep a few scalars
Call = tuple[str, int]  # operation, bytes of this rank's tensor
Use = Callable[[nn.Module, Sequence[Tensor]], Tensor]  # a module and its arguments -> what it gives
Named = Callable[[nn.Module], Iterable[tuple[str, Tensor]]]  # how a module's parameters are told apart
State = dict[str, Tensor]


class Seat(Protocol):
    """Where a module is put through its paces, and what is seen there goes."""

    def answer(self, name: str, tensor: Tensor | None) -> None:
        """Keep a tensor under a name; None where there is none."""

    def recording(self, name: str) -> contextlib.AbstractContextManager[object]:
        """Record the calls made inside, under a name."""

    def attempt(self, property_name: str) -> contextlib.AbstractContextManager[object]:
        """Count an error inside as the student's, against one property."""


class PlainSeat:
    """Keeps what the plain model gives, by name. Nothing is recorded, and errors are let through."""

    def __init__(self) -> None:
        self.tensors: State = {}

    def answer(self, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            self.tensors[name] = tensor.detach().clone()

    def recording(self, name: str) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def attempt(self, property_name: str) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


def call(module: nn.Module, arguments: Sequence[Tensor]) -> Tensor:
    """The usual `Use` of a module."""
    return module(*arguments)


def by_name(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """The usual `Named`."""
    return module.named_parameters()


def by_number(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Parameters by their number, where what they are called is the student's own affair."""
    return ((str(number), parameter) for number, parameter in enumerate(module.parameters()))


def observe(
    seat: Seat,
    module: nn.Module,
    arguments: Sequence[Tensor],
    grad_output: Tensor | None = None,
    use: Use = call,
    charged: str = "input-gradients",
    named: Named = by_name,
    between: Callable[[], None] = lambda: None,
) -> Tensor:
    """Forward and backward, once. Answers output, input_grad (of the first argument), grad.NAME; recordings
    forward and backward. Returns what the module gave.

    grad_output: None where the module gives one number. charged: the property that an error in backward
        fails. between: is called before backward.
    """
    with seat.recording("forward"):
        out = use(module, arguments)
    seat.answer("output", out)
    between()
    gradient = None if grad_output is None else grad_output.to(out.device)
    with seat.attempt(charged), seat.recording("backward"):
        _backward(out, gradient)
    seat.answer("input_grad", arguments[0].grad if arguments[0].is_floating_point() else None)
    for name, parameter in named(module):
        seat.answer(f"grad.{name}", parameter.grad)
    return out


def _backward(out: Tensor, grad_output: Tensor | None) -> None:
    """out.backward(grad_output), which makes torch import for half a second, only where the gradient's layout
    must arrive as it is.
    """
    if grad_output is None or not grad_output.is_contiguous():
        out.backward(grad_output)
    else:
        (out * grad_output).sum().backward()


def train(
    seat: Seat,
    module: nn.Module,
    batches: Sequence[Sequence[Tensor]],
    use: Use = call,
    charged: str = "trained-weights",
    named: Named = by_name,
) -> None:
    """One step of SGD for the arguments in each batch. Answers trained.NAME; recordings, of each step, those
    in `STEP_OF`.
    """
    with seat.attempt(charged):
        for arguments in batches:
            with seat.recording(STEP_OF["forward"]):
                out = use(module, arguments)
            with seat.recording(STEP_OF["backward"]):
                step(module, out)
    for name, parameter in named(module):
        seat.answer(f"trained.{name}", parameter)


def step(module: nn.Module, out: Tensor) -> None:
    """Plain SGD on a sum of squares of what a module gave, or on that itself if it is one number.

    A sum, so that the parts of ranks that divide the work add up to the whole's.
    """
    module.zero_grad()
    (out if out.dim() == 0 else SCALE * out.square().sum()).backward()
    descend(module)


def descend(module: nn.Module) -> None:
    """Plain SGD with the gradients that are there. Written out, because creating a torch.optim optimizer
    imports torch's compiler: seconds on every rank.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(LEARNING_RATE * parameter.grad)


# -- findings about one rank


def nbytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def same(told: str, expected: Tensor, answer: RankAnswer, name: str) -> Finding:
    """Whether the tensor a rank reported as `name` equals `expected`, which `told` puts in words."""
    wrong = difference(expected, answer.tensors.get(name))
    return Finding(wrong is None, told, wrong or "", answer.rank)


def holds_only(share: int, whole: int, answer: RankAnswer, slack: int = SLACK_BYTES) -> Finding:
    """Whether a rank's part, of `whole` bytes, took `share` bytes of memory and hardly any more: the fact
    "held_bytes".
    """
    held = answer.facts["held_bytes"]
    told = f"{share:,} bytes kept in memory by this rank's part (the whole: {whole:,})"
    return Finding(share <= held <= share + slack, told, f"{held:,} bytes", answer.rank)


def refused(fact: str, kinds: Sequence[str], answer: RankAnswer, names: Sequence[object] = ()) -> Finding:
    """Whether the rank met an error of one of these kinds, whose text holds these names: the fact that
    `rank.expect_error` left.
    """
    seen = answer.facts[fact]
    named = all(_mentions(seen["message"], str(name)) for name in names)
    right = named and bool(set(kinds) & set(seen.get("kinds") or []))
    said = f"{seen['raised']}: {seen['message']}" if seen["raised"] else "no error"
    naming = f" that names {' and '.join(map(str, names))}" if names else ""
    return Finding(right, f"{' or '.join(kinds)}{naming}", said, answer.rank)


def _mentions(message: str, name: str) -> bool:
    """Whether a name stands in a message; a number must not be a part of another one."""
    return re.search(rf"(?<!\d){re.escape(name)}(?!\d)", message) is not None


def calls_are(phase: str, expected: Sequence[Call], answer: RankAnswer, ignore: int = 0) -> Finding:
    """Whether a rank took part in exactly these calls, in any order, beside all_reduces of up to `ignore`
    bytes.
    """
    seen = [c for c in calls_of(answer, phase) if c[0] != "all_reduce" or c[1] > ignore]
    told, was = f"{phase}: {calls_text(expected)}", f"{phase}: {calls_text(seen)}"
    return Finding(Counter(seen) == Counter(expected), told, was, answer.rank)


def calls_of(answer: RankAnswer, phase: str) -> list[Call]:
    """The operation and bytes of each call of a phase, each call once."""
    return [(c["op"], c["num_bytes"]) for c in each_once(answer.collectives.get(phase, []))]


def as_each_time(*phases: str) -> Judge:
    """What is recorded more than once under a name is the same each time: a judge of these phases, beside
    those of the last time.
    """

    def find(evidence: Evidence) -> Iterator[Finding]:
        for answer in evidence.answers:
            for phase in phases:
                last = calls_of(answer, phase)
                for before in map(partial(calls_of, answer), answer.earlier(phase)):
                    told = f"{phase}: the same each time, {calls_text(last)}"
                    yield Finding(Counter(before) == Counter(last), told, calls_text(before), answer.rank)

    return find


def calls_text(calls: Sequence[Call]) -> str:
    """Calls in words: all_reduce of 8 bytes, 2 x all_gather of 16 bytes."""
    told = (
        f"{f'{n} x ' if n > 1 else ''}{op} of {num_bytes:,} bytes"
        for (op, num_bytes), n in sorted(Counter(calls).items())
    )
    return ", ".join(told) or "no communication"


def all_awaited(answer: RankAnswer) -> Finding:
    """Whether the rank waited for every message it started: one that nobody waits for may never leave."""
    calls = [c for found in answer.collectives.values() for c in found if c["op"] in ("send", "recv")]
    left = Counter((c["op"], c["num_bytes"]) for c in calls if c["source"] == "python" and c["end"] is None)
    return Finding(not left, "every send and receive waited for", _unawaited(left), answer.rank)


def _unawaited(left: Counter[Call]) -> str:
    return f"never waited for: {calls_text(list(left.elements()))}" if left else ""


def within_group(case: Case, answer: RankAnswer) -> Finding:
    """Whether all of a rank's calls were among the members of its group."""
    members = place_of(case, answer.rank).members
    used = sorted({tuple(sorted(c["group"])) for calls in answer.collectives.values() for c in calls})
    seen = " and ".join(str(list(ranks)) for ranks in used)
    right = all(list(ranks) == sorted(members) for ranks in used)
    return Finding(right, f"calls among ranks {members} only", f"calls among ranks {seen}", answer.rank)


# -- judges


def on_each(find: Callable[[Any, RankAnswer], Finding]) -> Judge:
    """A judge that has one finding about each rank."""
    return lambda evidence: (find(evidence, answer) for answer in evidence.answers)


def is_refused(fact: str, *kinds: str, names: Callable[[Case], Sequence[object]] = lambda case: ()) -> Judge:
    """A judge of `refused`; names: (case) -> what the text must hold."""
    return on_each(lambda evidence, answer: refused(fact, kinds, answer, names(evidence.case)))


def stays_in_group(evidence: Evidence) -> Iterator[Finding]:
    """Nothing was sent outside the group that was handed over."""
    return (within_group(evidence.case, answer) for answer in evidence.answers)
