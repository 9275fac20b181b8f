"""A subject's run, and all that a later reader could tell two runs apart by."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from labkit.checks.lesson_05.subjects import BOTH, Call, Subject
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.beside import State


def observe(subject: Subject, call: Call, seed: int) -> State:
    """Run forward and backward through `call(function, *args)` and name what came of it.

    "output" (the sum, where several calls come before their backwards), "results" (how many a tuple has, 0
    for a tensor), "input_grad.N", "grad.NAME", "buffer.NAME", and "next_random": what the generator draws
    afterwards.
    """
    seed_generators(seed)
    with autocast_of(subject):
        calls = [_called(subject, call, number) for number in range(len(subject.backwards))]
    outputs = [used_of(results, subject.result) for results in calls]
    torch.rand(5)  # what other code draws in between must not be drawn again
    for number in subject.backwards:
        outputs[number].backward(_times(subject.grad_output.to(outputs[number].dtype), number))
    seen = {"output": torch.stack(outputs).sum(0).detach(), "next_random": torch.rand(3)}
    seen["results"] = torch.tensor(len(calls[0]) if isinstance(calls[0], tuple) else 0)
    seen |= gradients_of(subject)
    return seen | {f"buffer.{n}": b.clone() for n, b in subject.module.named_buffers()}


def _called(subject: Subject, call: Call, number: int) -> Any:
    results = call(subject.function, *(_times(arg, number) for arg in subject.args))
    for _ in range(1, subject.in_a_row):
        results = call(subject.function, results)
    return results


def _times(value: Any, number: int) -> Any:
    """As the first call has it; of each other one what is multiplied tells that it is another's."""
    many = isinstance(value, Tensor) and value.is_floating_point() and number > 0
    return value * (1 + number) if many else value


def gradients_of(subject: Subject) -> State:
    """ "input_grad.N" and "grad.NAME", of those that have one."""
    inputs = enumerate(subject.leaves)
    found = {f"input_grad.{i}": leaf.grad for i, leaf in inputs if leaf.grad is not None}
    named = subject.module.named_parameters()
    return found | {f"grad.{name}": p.grad for name, p in named if p.grad is not None}


def used_of(results: Any, which: int) -> Tensor:
    """What backward starts from, of several results: of `BOTH`, with the one without a graph as a weight."""
    if not isinstance(results, tuple):
        result: Tensor = results
        return result
    return results[0] + results[1] * results[2] if which == BOTH else results[which]


def autocast_of(subject: Subject) -> contextlib.AbstractContextManager[object]:
    """The block that a subject is called in."""
    return torch.autocast("cpu", subject.autocast) if subject.autocast else contextlib.nullcontext()
