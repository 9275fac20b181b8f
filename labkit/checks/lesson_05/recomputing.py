"""The check of `checkpoint(function, *args)`: the same run, once by plain autograd and once through the
student's.

`observe` runs a subject and names everything a later reader could tell two runs apart by. The judge
observes plain calls in its own process; the rank observes the student's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.record.live import LiveBytes

Call = Callable[..., Any]
SLACK_BYTES = (
    16 * 1024
)  # the generator's state is 5 KiB; what a careful solution keeps besides stays far below


@dataclass
class Subject:
    """A function to be checkpointed, its arguments, the module whose parameters it uses, and what backward
    gets.
    """

    function: Call
    args: tuple[Any, ...]
    module: nn.Module
    grad_output: Tensor
    result: int = 0  # which of several results backward starts from
    autocast: bool = False


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Call):
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)


class RaisesInSecondRun(Counted):
    """Runs once; the second time it draws a random number and raises."""

    def __call__(self, *args: Any) -> Any:
        result = super().__call__(*args)
        if self.calls > 1:
            torch.rand(1)
            raise ArithmeticError("the second run failed")
        return result


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Several(nn.Module):
    """Two results from a float tensor, another one, ids, and a plain number."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.table = nn.Embedding(inner, width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor, ids: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.mix(x + self.table(ids))) * scale, self.mix(y) * scale


def _module(case: Case) -> nn.Module:
    width, inner = case.params["width"], case.params["inner"]
    first, last = nn.Linear(width, inner), nn.Linear(inner, width)
    match case.params["function"]:
        case "dropout":
            return nn.Sequential(first, nn.Dropout(0.4), nn.GELU(), last, nn.Dropout(0.2))
        case "batchnorm":
            return nn.Sequential(first, nn.BatchNorm1d(inner), nn.Tanh(), last)
        case "several":
            return _Several(width, inner)
    return nn.Sequential(first, nn.GELU(), last)


def checkpoint_inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Parameters "full.NAME" of the module; x, y, ids and grad_output with one entry a rank."""
    kind = torch.float32 if case.params["function"] == "autocast" else torch.float64
    shape = (case.ranks, case.params["rows"], case.params["width"])
    found = {
        f"full.{name}": torch.randn(parameter.shape, generator=generator, dtype=kind)
        / parameter.shape[-1] ** 0.5
        for name, parameter in _module(case).named_parameters()
    }
    found |= {name: torch.randn(shape, generator=generator, dtype=kind) for name in ("x", "y", "grad_output")}
    found["ids"] = torch.randint(case.params["inner"], shape[:2], generator=generator)
    return found


def subject_of(case: Case, inputs: Inputs, rank: int, sum_over_ranks: Call | None = None) -> Subject:
    """What is checkpointed in this case, with fresh tensors. sum_over_ranks: for the case that sends."""
    x, y = (inputs[name][rank].clone() for name in ("x", "y"))
    module = _loaded(_module(case).to(x.dtype), inputs)
    subject = Subject(
        module, (x.requires_grad_(case.params.get("input_grad", True)),), module, inputs["grad_output"][rank]
    )
    match case.params["function"]:
        case "several":
            subject.args = (x, y.requires_grad_(), inputs["ids"][rank], 0.5)
            subject.result = case.params.get("result", 0)
        case "autocast":
            subject.autocast = True
        case "all-reduce":
            assert sum_over_ranks is not None
            subject.function = lambda value: sum_over_ranks(torch.tanh(module(value))).square()
    return subject


def _loaded(module: nn.Module, inputs: Inputs) -> nn.Module:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(inputs[f"full.{name}"])
    return module


def observe(subject: Subject, call: Call, seed: int) -> dict[str, Tensor]:
    """Run forward and backward through `call(function, *args)` and name what came of it.

    "output", "input_grad", "grad.NAME", "buffer.NAME", and "next_random": what the generator draws
    afterwards.
    """
    seed_generators(seed)
    with _autocast(subject):
        results = call(subject.function, *subject.args)
    output = results[subject.result] if isinstance(results, (tuple, list)) else results
    torch.rand(5)  # what other code draws in between must not be drawn again
    output.backward(subject.grad_output.to(output.dtype))
    seen = {"output": output, "next_random": torch.rand(3)}
    inputs = [arg for arg in subject.args if isinstance(arg, Tensor) and arg.requires_grad]
    seen |= {f"input_grad.{i}": arg.grad for i, arg in enumerate(inputs) if arg.grad is not None}
    seen |= {f"grad.{n}": p.grad for n, p in subject.module.named_parameters() if p.grad is not None}
    return seen | {f"buffer.{n}": b.clone() for n, b in subject.module.named_buffers()}


def _autocast(subject: Subject) -> contextlib.AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if subject.autocast else contextlib.nullcontext()


# -- on a rank


def checkpoint_on_rank(rank: Rank) -> None:
    """Observe the student's `checkpoint` on the case's function."""
    match rank.params["function"]:
        case "nested":
            _nested(rank)
        case "raises":
            _raises(rank)
        case "all-reduce":
            _over_ranks(rank)
        case _:
            _send(rank, subject_of(rank.case, rank.inputs, rank.rank), rank.student.checkpoint)
    if "saved-bytes" in rank.case.properties:
        _measure(rank)


def _send(rank: Rank, subject: Subject, call: Call) -> None:
    for name, tensor in observe(subject, call, rank.case.seed).items():
        rank.answer(name, tensor)


def _measure(rank: Rank) -> None:
    subject = subject_of(rank.case, rank.inputs, rank.rank)
    function = Counted(subject.function)
    tensors = [a for a in subject.args if isinstance(a, Tensor)]
    with LiveBytes(leave_out=[*subject.module.parameters(), *tensors, *rank.inputs.values()]) as live:
        output = rank.student.checkpoint(function, *subject.args)
        rank.fact("kept_bytes", live.now)
        rank.fact("calls", [function.calls])
        output.backward(subject.grad_output)
    rank.fact("calls", [*rank.result.facts["calls"], function.calls])
    rank.fact("output_bytes", output.nbytes)


def _nested(rank: Rank) -> None:
    subject = subject_of(rank.case, rank.inputs, rank.rank)
    parts = list(subject.module.children())
    inner = Counted(nn.Sequential(*parts[:2]))
    subject.function = lambda x: parts[2](rank.student.checkpoint(inner, x))
    _send(rank, subject, rank.student.checkpoint)
    rank.fact("inner_calls", inner.calls)


def _raises(rank: Rank) -> None:
    subject = subject_of(rank.case, rank.inputs, rank.rank)
    output = rank.student.checkpoint(RaisesInSecondRun(subject.function), *subject.args)
    rank.answer("state_before", torch.get_rng_state())
    with rank.expect_error("second_run"):
        output.backward(subject.grad_output)
    rank.answer("state_after", torch.get_rng_state())


def _over_ranks(rank: Rank) -> None:
    subject = subject_of(rank.case, rank.inputs, rank.rank, lambda x: _SumOverRanks.apply(x, rank.group))
    with rank.recording("all"):
        _send(rank, subject, rank.student.checkpoint)


# -- in the judge


def _plainly(function: Call, *args: Any) -> Any:
    return function(*args)


@dataclass
class _Evidence:
    case: Case
    answer: RankAnswer
    expected: dict[str, Tensor] = field(default_factory=dict)

    def same(self, property_name: str, *prefixes: str) -> Iterator[Finding]:
        """Each expected tensor whose name begins with one of `prefixes` against the answer of that name."""
        names = [name for name in self.expected if name.startswith(prefixes)]
        for name in names:
            wrong = difference(self.expected[name].detach(), self.answer.tensors.get(name))
            told = f"{name} as plain autograd has it"
            yield Finding(property_name, wrong is None, told, wrong or "", self.answer.rank)


def judge_checkpoint(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for the properties the case is about."""
    for answer in answers:
        evidence = _Evidence(case, answer)
        if case.params["function"] != "raises":
            evidence.expected = observe(_plain_subject(case, inputs, answer.rank), _plainly, case.seed)
        for name in case.properties:
            yield from _JUDGES[name](evidence)


def _plain_subject(case: Case, inputs: Inputs, rank: int) -> Subject:
    """The case's subject, with the other ranks' share of a sum computed here."""

    def add_the_others(own: Tensor) -> Tensor:
        module = subject_of(case, inputs, rank, lambda x: x).module
        others = [torch.tanh(module(inputs["x"][r])) for r in range(case.ranks) if r != rank]
        return own + sum(others).detach()  # type: ignore[union-attr]

    return subject_of(case, inputs, rank, add_the_others)


def _everything(name: str) -> Callable[[_Evidence], Iterator[Finding]]:
    return lambda evidence: evidence.same(name, "output", "input_grad", "grad", "next_random")


def _forward_counts(evidence: _Evidence) -> Iterator[Finding]:
    seen = evidence.answer.facts["calls"]
    yield Finding("forward-counts", seen == [1, 2], "1 run after forward, 2 after backward", _counts(seen))


def _counts(seen: Sequence[int]) -> str:
    return f"{seen[0]} after forward, {seen[1]} after backward"


def _saved_bytes(evidence: _Evidence) -> Iterator[Finding]:
    facts = evidence.answer.facts
    inputs = evidence.expected["input_grad.0"].nbytes
    most = evidence.expected["output"].nbytes + inputs + SLACK_BYTES
    kept = facts["kept_bytes"]
    yield Finding(
        "saved-bytes", kept <= most, f"at most {most} bytes besides parameters and inputs", f"{kept} bytes"
    )


def _nested_runs(evidence: _Evidence) -> Iterator[Finding]:
    yield from evidence.same("nested", "output", "input_grad", "grad")
    calls = evidence.answer.facts["inner_calls"]
    yield Finding("nested", calls in (2, 3), "the inner function runs 2 or 3 times", f"{calls} times")


def _state_after_error(evidence: _Evidence) -> Iterator[Finding]:
    raised = evidence.answer.facts["second_run"]["raised"]
    yield Finding(
        "state-after-error", raised == "ArithmeticError", "the error of the second run", str(raised)
    )
    before, after = (evidence.answer.tensors[f"state_{when}"] for when in ("before", "after"))
    same = before.numel() > 0 and torch.equal(before, after)
    yield Finding(
        "state-after-error", same, "the random state of before backward", "" if same else "another state"
    )


def _on_ranks(evidence: _Evidence) -> Iterator[Finding]:
    yield from evidence.same("on-ranks", "output", "input_grad", "grad")
    seen = [call["op"] for call in evidence.answer.collectives["all"]]
    expected = ["all_reduce", "all_reduce"]
    yield Finding(
        "on-ranks", seen == expected, "2 all-reduces", f"{len(seen)}: {seen[:6]}", evidence.answer.rank
    )


_JUDGES: dict[str, Callable[[_Evidence], Iterator[Finding]]] = {
    "forward-values": lambda e: e.same("forward-values", "output"),
    "input-gradients": lambda e: e.same("input-gradients", "input_grad"),
    "parameter-gradients": lambda e: e.same("parameter-gradients", "grad."),
    "random-state": _everything("random-state"),
    "autocast": lambda e: e.same("autocast", "output", "input_grad", "grad"),
    "no-input-gradient": lambda e: e.same("no-input-gradient", "output", "grad."),
    "several-arguments": lambda e: e.same("several-arguments", "output", "input_grad", "grad."),
    "buffers-once": lambda e: e.same("buffers-once", "buffer", "grad."),
    "forward-counts": _forward_counts,
    "saved-bytes": _saved_bytes,
    "nested": _nested_runs,
    "state-after-error": _state_after_error,
    "on-ranks": _on_ranks,
}
