"""The check of `checkpoint(function, *args)`: the same run, once by plain autograd and once through the
student's.

`observe` runs a subject and names everything a later reader could tell two runs apart by. The judge
observes plain calls in its own process; the rank observes the student's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Evidence, Finding, Judge, Run
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.beside import State, same
from labkit.checks.shared.held import bytes_kept

Call = Callable[..., Any]
SLACK_BYTES = 16 * 1024  # the generator's state is 5 KiB; what a careful solution keeps besides stays below


@dataclass
class Subject:
    """A function to be checkpointed, its arguments, the module whose parameters it uses, and what backward
    gets. in_a_row: how often it is called, each time with what it gave before.
    """

    function: Call
    args: tuple[Any, ...]
    module: nn.Module
    grad_output: Tensor
    result: int  # which of several results backward starts from
    autocast: torch.dtype | None
    in_a_row: int = 1


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


def _mlp(width: int, inner: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


def _with_dropout(width: int, inner: int) -> nn.Module:
    first, gelu, last = _mlp(width, inner).children()
    return nn.Sequential(first, nn.Dropout(0.4), gelu, last, nn.Dropout(0.2))


def _with_batch_norm(width: int, inner: int) -> nn.Module:
    first, _, last = _mlp(width, inner).children()
    return nn.Sequential(first, nn.BatchNorm1d(inner), nn.Tanh(), last)


def _x(handed: Inputs) -> tuple[Any, ...]:
    return (handed["x"].clone().requires_grad_(),)


def _x_as_data(handed: Inputs) -> tuple[Any, ...]:
    return (handed["x"].clone(),)


def _several_arguments(handed: Inputs) -> tuple[Any, ...]:
    return (*_x(handed), handed["y"].clone().requires_grad_(), handed["ids"], 0.5)


@dataclass(frozen=True)
class Recipe:
    """What a kind of case checkpoints: a module of (width, inner), and how it is called."""

    module: Callable[[int, int], nn.Module] = _mlp
    args: Callable[[Inputs], tuple[Any, ...]] = _x
    dtype: torch.dtype = torch.float64
    autocast: torch.dtype | None = None

    def inputs(self, case: Case, generator: torch.Generator) -> Inputs:
        """Parameters "full.NAME" of the module; x, y, ids and grad_output with one entry a rank."""

        def draw(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, dtype=self.dtype)

        shape = (case.ranks, case.params["rows"], case.params["width"])
        found = {
            f"full.{name}": draw(*parameter.shape) / parameter.shape[-1] ** 0.5
            for name, parameter in self._empty(case).named_parameters()
        }
        found |= {name: draw(*shape) for name in ("x", "y", "grad_output")}
        return found | {"ids": torch.randint(case.params["inner"], shape[:2], generator=generator)}

    def subject(self, case: Case, handed: Inputs) -> Subject:
        """The function with fresh tensors, of what one rank is handed."""
        module = self._empty(case).to(self.dtype)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(handed[f"full.{name}"])
        for name in case.params.get("frozen", ()):
            module.get_parameter(name).requires_grad_(False)
        args, result = self.args(handed), case.params.get("result", 0)
        in_a_row = case.params.get("in_a_row", 1)
        return Subject(module, args, module, handed["grad_output"], result, self.autocast, in_a_row)

    def _empty(self, case: Case) -> nn.Module:
        return self.module(case.params["width"], case.params["inner"])


PLAIN = Recipe()


def hand(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """The parameters, and this rank's entry of all else."""
    return {name: t if name.startswith("full.") else t[rank] for name, t in inputs.items()}


def observe(subject: Subject, call: Call, seed: int) -> State:
    """Run forward and backward through `call(function, *args)` and name what came of it.

    "output", "input_grad.N", "grad.NAME", "buffer.NAME", and "next_random": what the generator draws
    afterwards.
    """
    seed_generators(seed)
    with _autocast(subject):
        results = call(subject.function, *subject.args)
        for _ in range(1, subject.in_a_row):
            results = call(subject.function, results)
    output = results[subject.result] if isinstance(results, (tuple, list)) else results
    torch.rand(5)  # what other code draws in between must not be drawn again
    output.backward(subject.grad_output.to(output.dtype))
    seen = {"output": output.detach(), "next_random": torch.rand(3)}
    inputs = [arg for arg in subject.args if isinstance(arg, Tensor) and arg.requires_grad]
    seen |= {f"input_grad.{i}": arg.grad for i, arg in enumerate(inputs) if arg.grad is not None}
    seen |= {f"grad.{n}": p.grad for n, p in subject.module.named_parameters() if p.grad is not None}
    return seen | {f"buffer.{n}": b.clone() for n, b in subject.module.named_buffers()}


def _autocast(subject: Subject) -> contextlib.AbstractContextManager[object]:
    return torch.autocast("cpu", subject.autocast) if subject.autocast else contextlib.nullcontext()


# -- on a rank


def _send(rank: Rank, subject: Subject) -> None:
    for name, tensor in observe(subject, rank.student.checkpoint, rank.case.seed).items():
        rank.answer(name, tensor)


def _once(rank: Rank, recipe: Recipe) -> None:
    _send(rank, recipe.subject(rank.case, rank.inputs))


def _measured(rank: Rank, recipe: Recipe) -> None:
    """Facts: kept_bytes (between forward and backward), calls (after forward, after backward)."""

    def prepare() -> Callable[[], Tensor]:
        fresh = recipe.subject(rank.case, rank.inputs)
        return lambda: rank.student.checkpoint(fresh.function, *fresh.args)

    rank.fact("kept_bytes", bytes_kept(prepare))
    subject = recipe.subject(rank.case, rank.inputs)
    function = Counted(subject.function)
    output = rank.student.checkpoint(function, *subject.args)
    calls = [function.calls]
    output.backward(subject.grad_output)
    rank.fact("calls", [*calls, function.calls])


def _nested(rank: Rank, recipe: Recipe) -> None:
    """Fact: inner_calls."""
    subject = recipe.subject(rank.case, rank.inputs)
    *first, last = subject.module.children()
    inner = Counted(nn.Sequential(*first))
    subject.function = lambda x: last(rank.student.checkpoint(inner, x))
    _send(rank, subject)
    rank.fact("inner_calls", inner.calls)


def _raises(rank: Rank, recipe: Recipe) -> None:
    """Answers: state_before, state_after. Fact: second_run."""
    subject = recipe.subject(rank.case, rank.inputs)
    output = rank.student.checkpoint(RaisesInSecondRun(subject.function), *subject.args)
    rank.answer("state_before", torch.get_rng_state())
    with rank.expect_error("second_run"):
        output.backward(subject.grad_output)
    rank.answer("state_after", torch.get_rng_state())


def _over_ranks(rank: Rank, recipe: Recipe) -> None:
    """Recording: all."""
    subject = recipe.subject(rank.case, rank.inputs)
    subject.function = partial(_summed, subject.module, lambda x: _SumOverRanks.apply(x, rank.group))
    with rank.recording("all"):
        _send(rank, subject)


def _summed(module: nn.Module, add_up: Call, value: Tensor) -> Tensor:
    """What is checkpointed where ranks add up."""
    return add_up(torch.tanh(module(value))).square()


# -- in the judge


@dataclass(frozen=True)
class BesidePlainCalls(Evidence):
    """A case's answers, and what plain calls give."""

    recipe: Recipe

    @cached_property
    def plain(self) -> list[State]:
        """What a rank should have observed, by rank."""
        return [
            observe(self._subject(rank), lambda function, *args: function(*args), self.case.seed)
            for rank in range(self.case.ranks)
        ]

    def _subject(self, rank: int) -> Subject:
        return self.recipe.subject(self.case, hand(self.case, self.inputs, rank))


class BesidePlainSums(BesidePlainCalls):
    """The same where ranks add up: the others' share is computed here."""

    def _subject(self, rank: int) -> Subject:
        subject = super()._subject(rank)
        others = [x for r, x in enumerate(self.inputs["x"]) if r != rank]
        share = sum(torch.tanh(subject.module(x)).detach() for x in others)
        subject.function = partial(_summed, subject.module, lambda own: own + share)
        return subject


def _run(
    on_rank: Callable[[Rank, Recipe], None],
    recipe: Recipe = PLAIN,
    evidence: Callable[..., BesidePlainCalls] = BesidePlainCalls,
) -> Run:
    return Run(lambda rank: on_rank(rank, recipe), recipe.inputs, hand, partial(evidence, recipe=recipe))


RUNS: Mapping[str, Run] = {
    "values": _run(_once),
    "measured": _run(_measured),
    "dropout": _run(_once, Recipe(_with_dropout)),
    "autocast": _run(_once, Recipe(dtype=torch.float32, autocast=torch.bfloat16)),
    "half": _run(_once, Recipe(dtype=torch.float32, autocast=torch.float16)),
    "single": _run(_once, Recipe(dtype=torch.float32)),
    "data": _run(_once, Recipe(args=_x_as_data)),
    "several": _run(_once, Recipe(_Several, _several_arguments)),
    "nested": _run(_nested),
    "buffers": _run(_once, Recipe(_with_batch_norm)),
    "raises": _run(_raises),
    "ranks": _run(_over_ranks, evidence=BesidePlainSums),
}


def as_plain(*prefixes: str) -> Judge:
    """All that plain autograd gives, of names that begin like this, the student's gives too, and nothing but
    zeros beside it.
    """

    def judge(evidence: BesidePlainCalls) -> Iterator[Finding]:
        for answer in evidence.answers:
            plain = evidence.plain[answer.rank]
            for name, tensor in plain.items():
                if name.startswith(prefixes):
                    yield same(f"{name} as plain autograd has it", tensor, answer, name)
            beside = {n: t for n, t in answer.tensors.items() if n.startswith(prefixes) and n not in plain}
            found = ", ".join(name for name, tensor in beside.items() if tensor.any())
            yield Finding(not found, "no gradient where plain autograd has none", found, answer.rank)

    return judge


def runs_twice(evidence: Evidence) -> Iterator[Finding]:
    """Once in forward, once more in backward."""
    seen = evidence.answers[0].facts["calls"]
    yield Finding(seen == [1, 2], "1 run after forward, 2 after backward", _counts(seen))


def _counts(seen: Sequence[int]) -> str:
    return f"{seen[0]} after forward, {seen[1]} after backward"


def keeps_its_ends(evidence: BesidePlainCalls) -> Iterator[Finding]:
    """Between forward and backward only the inputs and the result are alive."""
    plain, kept = evidence.plain[0], evidence.answers[0].facts["kept_bytes"]
    most = plain["output"].nbytes + plain["input_grad.0"].nbytes + SLACK_BYTES
    yield Finding(kept <= most, f"at most {most} bytes besides parameters and inputs", f"{kept} bytes")


def inner_runs_thrice(evidence: Evidence) -> Iterator[Finding]:
    """A checkpoint inside one runs at most three times."""
    calls = evidence.answers[0].facts["inner_calls"]
    yield Finding(calls in (2, 3), "the inner function runs 2 or 3 times", f"{calls} times")


def restores_after_error(evidence: Evidence) -> Iterator[Finding]:
    """The second run's error came through, and the random state is that of before."""
    answer = evidence.answers[0]
    raised = answer.facts["second_run"]["raised"]
    yield Finding(raised == "ArithmeticError", "the error of the second run", str(raised))
    before, after = (answer.tensors[f"state_{when}"] for when in ("before", "after"))
    kept = before.numel() > 0 and torch.equal(before, after)
    yield Finding(kept, "the random state of before backward", "" if kept else "another state")


def sends_twice(evidence: Evidence) -> Iterator[Finding]:
    """The function's own call, once in forward and once more in backward."""
    for answer in evidence.answers:
        seen = [call["op"] for call in answer.collectives["all"]]
        told = f"{len(seen)}: {seen[:6]}"
        yield Finding(seen == ["all_reduce", "all_reduce"], "2 all-reduces", told, answer.rank)
