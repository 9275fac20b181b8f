"""The check of `checkpoint(function, *args)`: the same run, once by plain autograd and once through the
student's.

`observe` runs a subject and names everything a later reader could tell two runs apart by. The judge
observes plain calls in its own process; the rank observes the student's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import JSON, Case, Inputs
from labkit.checks.exercise import Evidence, Finding, Judge, Run
from labkit.checks.lesson_05.subjects import (
    BOTH,
    Call,
    Recipe,
    Several,
    Subject,
    in_part_in_full,
    one_for_two,
    one_result,
    several_arguments,
    view_of_x,
    with_batch_norm,
    with_deep_batch_norm,
    with_dropout,
    with_its_own_dropout,
    with_mask,
    x_as_data,
)
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.beside import State, nbytes, same
from labkit.checks.shared.held import bytes_kept

MEASURED_RUNS = {
    "kept": "bytes between forward and backward are counted",
    "left": "bytes after backward are counted",
    "counted": "runs are counted",
}
SLACK_BYTES = 16 * 1024  # the generator's state is 5 KiB; what a careful solution keeps besides stays below


def _counted(function: Call) -> tuple[Call, list[str]]:
    """A function to hand out, and where its calls are noted, out of its reach: the dtype of each result."""
    types: list[str] = []

    def noted(*args: Any) -> Any:
        types.append("")
        result = function(*args)
        types[-1] = str(result.dtype) if isinstance(result, Tensor) else ""
        return result

    return noted, types


def _raises_in_its_second_run(function: Call) -> Call:
    """Runs once; the second time it draws a random number and raises."""
    noted, calls = _counted(function)

    def second(*args: Any) -> Any:
        result = noted(*args)
        if len(calls) > 1:
            torch.rand(1)
            raise ArithmeticError("the second run failed")
        return result

    return second


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


PLAIN = Recipe()


def hand(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """The parameters, and this rank's entry of all else."""
    return {name: t if name.startswith("full.") else t[rank] for name, t in inputs.items()}


def observe(subject: Subject, call: Call, seed: int) -> State:
    """Run forward and backward through `call(function, *args)` and name what came of it.

    "output", "results" (how many a tuple has, 0 for a tensor), "input_grad.N", "grad.NAME", "buffer.NAME",
    and "next_random": what the generator draws afterwards.
    """
    seed_generators(seed)
    with _autocast(subject):
        results = call(subject.function, *subject.args)
        for _ in range(1, subject.in_a_row):
            results = call(subject.function, results)
    several = isinstance(results, tuple)
    output = _used(results, subject.result)
    torch.rand(5)  # what other code draws in between must not be drawn again
    output.backward(subject.grad_output.to(output.dtype))
    seen = {"output": output.detach(), "next_random": torch.rand(3)}
    seen["results"] = torch.tensor(len(results) if several else 0)
    seen |= _gradients(subject)
    return seen | {f"buffer.{n}": b.clone() for n, b in subject.module.named_buffers()}


def _gradients(subject: Subject) -> State:
    """ "input_grad.N" and "grad.NAME", of those that have one."""
    inputs = [arg for arg in subject.args if isinstance(arg, Tensor) and arg.requires_grad]
    found = {f"input_grad.{i}": arg.grad for i, arg in enumerate(inputs) if arg.grad is not None}
    named = subject.module.named_parameters()
    return found | {f"grad.{name}": p.grad for name, p in named if p.grad is not None}


def _used(results: Any, which: int) -> Tensor:
    """What backward starts from, of several results: of `BOTH`, with the one without a graph as a weight."""
    if not isinstance(results, tuple):
        result: Tensor = results
        return result
    return results[0] + results[1] * results[2] if which == BOTH else results[which]


def _autocast(subject: Subject) -> contextlib.AbstractContextManager[object]:
    return torch.autocast("cpu", subject.autocast) if subject.autocast else contextlib.nullcontext()


# -- on a rank


def _send(rank: Rank, subject: Subject) -> None:
    for name, tensor in observe(subject, rank.student.checkpoint, rank.case.seed).items():
        rank.answer(name, tensor)


def _once(rank: Rank, recipe: Recipe) -> None:
    _send(rank, recipe.subject(rank.case, rank.inputs))


def _without_gradients(rank: Rank, recipe: Recipe) -> None:
    """Under no_grad. Answers: output. Facts: calls, graph (whether the result has one)."""
    subject = recipe.subject(rank.case, rank.inputs)
    function, calls = _counted(subject.function)
    with torch.no_grad():
        output = rank.student.checkpoint(function, *subject.args)
    rank.answer("output", output)
    rank.fact("calls", len(calls))
    rank.fact("graph", output.requires_grad)


def _measured(rank: Rank, recipe: Recipe) -> None:
    """Facts: kept_bytes (between forward and backward), left_bytes (after backward), both with the results,
    which live; calls (after forward, after backward). Answers, of each of the three: output, input_grad.N and
    grad.NAME as "kept NAME", "left NAME" and "counted NAME".

    A call of two rows goes before each that is measured: what is kept of the last call alone is seen then.
    """
    subject = recipe.subject(rank.case, rank.inputs)
    at_hand = _room_for_gradients(subject)

    def call(subject: Subject) -> Any:
        seed_generators(rank.case.seed)
        with _autocast(subject):
            return rank.student.checkpoint(subject.function, *subject.args)

    def back_and_forth(subject: Subject) -> Any:
        results = call(subject)
        _backward(subject, results)
        for name, gradient in _gradients(subject).items():
            at_hand[name][: len(gradient)].copy_(gradient)
        _forget_gradients(subject)
        return results

    def prepare() -> Subject:
        fresh = recipe.subject(rank.case, rank.inputs)
        back_and_forth(_first_rows(fresh))
        for gradient in at_hand.values():
            gradient.zero_()
        return fresh

    def forward() -> Callable[[], tuple[Any, Subject]]:
        fresh = prepare()
        return lambda: (call(fresh), fresh)

    def go_back(kept: tuple[Any, Subject]) -> None:
        results, fresh = kept
        output = _backward(fresh, results)
        _tell(rank, "kept", output, _gradients(fresh))

    rank.fact("kept_bytes", bytes_kept(forward, go_back))
    rank.fact(
        "left_bytes",
        bytes_kept(
            lambda: partial(back_and_forth, prepare()),
            lambda results: _tell(rank, "left", _used(results, subject.result), at_hand),
        ),
    )
    calls = _count_runs(subject)
    results = call(subject)
    after_forward = len(calls)
    output = _backward(subject, results)
    rank.fact("calls", [after_forward, len(calls)])
    _tell(rank, "counted", output, _gradients(subject))


def _backward(subject: Subject, results: Any) -> Tensor:
    """What backward started from."""
    output = _used(results, subject.result)
    output.backward(subject.grad_output.to(output.dtype))
    return output


def _count_runs(subject: Subject) -> list[None]:
    """What grows by one whenever the function runs: the module itself notes it, where it is one, so that it
    is the same function as elsewhere.
    """
    runs: list[None] = []
    subject.module.register_forward_pre_hook(lambda module, args: runs.append(None))
    return runs


def _first_rows(subject: Subject) -> Subject:
    """Two rows of each argument, with gradients where it asks for them: batch normalisation needs two."""

    def first(arg: Any) -> Any:
        return arg.detach()[:2].clone().requires_grad_(arg.requires_grad) if isinstance(arg, Tensor) else arg

    args = tuple(first(arg) for arg in subject.args)
    return replace(subject, args=args, grad_output=subject.grad_output[:2].clone())


def _forget_gradients(subject: Subject) -> None:
    subject.module.zero_grad()
    for arg in subject.args:
        if isinstance(arg, Tensor):
            arg.grad = None


def _room_for_gradients(subject: Subject) -> State:
    """Zeros for all of `_gradients`: what gradients are copied to that are to be gone."""
    inputs = [arg for arg in subject.args if isinstance(arg, Tensor) and arg.requires_grad]
    found = {f"input_grad.{i}": torch.zeros_like(arg) for i, arg in enumerate(inputs)}
    return found | {f"grad.{name}": torch.zeros_like(p) for name, p in subject.module.named_parameters()}


def _tell(rank: Rank, which: str, output: Tensor, gradients: State) -> None:
    """Answers: "WHICH output" and the gradients as "WHICH NAME"."""
    for name, tensor in {"output": output, **gradients}.items():
        rank.answer(f"{which} {name}", tensor)


def _types(rank: Rank, recipe: Recipe) -> None:
    """Facts: types_outside and types_inside, of the result in each run: where forward is outside autocast or
    inside, and backward inside another one.
    """
    for where, dtype in (("outside", None), ("inside", torch.float16)):
        subject = replace(recipe.subject(rank.case, rank.inputs), autocast=dtype)
        function, types = _counted(subject.function)
        with _autocast(subject):
            output = rank.student.checkpoint(function, *subject.args)
        with torch.autocast("cpu", torch.bfloat16), rank.attempt("autocast"):
            output.backward(subject.grad_output.to(output.dtype))
        rank.fact(f"types_{where}", list[JSON](types))


def _nested(rank: Rank, recipe: Recipe) -> None:
    """Fact: inner_calls."""
    subject = recipe.subject(rank.case, rank.inputs)
    *first, last = subject.module.children()
    inner, calls = _counted(nn.Sequential(*first))
    subject.function = lambda x: last(rank.student.checkpoint(inner, x))
    _send(rank, subject)
    rank.fact("inner_calls", len(calls))


def _raises(rank: Rank, recipe: Recipe) -> None:
    """Answers: state_before, state_after. Fact: second_run."""
    subject = recipe.subject(rank.case, rank.inputs)
    output = rank.student.checkpoint(_raises_in_its_second_run(subject.function), *subject.args)
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

    @cached_property
    def result_bytes(self) -> int:
        """What the first rank's results take."""
        subject = self._subject(0)
        with torch.no_grad(), _autocast(subject):
            results = subject.function(*subject.args)
        return sum(map(nbytes, results if isinstance(results, tuple) else (results,)))

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
    "measured": _run(_measured, Recipe(ones=True)),
    "measured-data": _run(_measured, Recipe(args=x_as_data, ones=True)),
    "measured-buffer": _run(_measured, Recipe(with_mask, ones=True)),
    "measured-view": _run(_measured, Recipe(args=view_of_x, ones=True)),
    "measured-dropout": _run(_measured, Recipe(with_dropout, ones=True)),
    "measured-autocast": _run(
        _measured, Recipe(in_part_in_full, dtype=torch.float32, autocast=torch.bfloat16, ones=True)
    ),
    "measured-several": _run(_measured, Recipe(Several, several_arguments, ones=True)),
    "measured-averages": _run(_measured, Recipe(with_batch_norm, ones=True)),
    "dropout": _run(_once, Recipe(with_dropout)),
    "own-dropout": _run(_once, Recipe(with_its_own_dropout)),
    "autocast": _run(_once, Recipe(in_part_in_full, dtype=torch.float32, autocast=torch.bfloat16)),
    "half": _run(_once, Recipe(in_part_in_full, dtype=torch.float32, autocast=torch.float16)),
    "single": _run(_once, Recipe(dtype=torch.float32)),
    "types": _run(_types, Recipe(dtype=torch.float32)),
    "data": _run(_once, Recipe(args=x_as_data)),
    "view": _run(_once, Recipe(args=view_of_x)),
    "no-grad": _run(_without_gradients),
    "several": _run(_once, Recipe(Several, several_arguments)),
    "shared": _run(_once, Recipe(Several, one_for_two)),
    "one": _run(_once, Recipe(one_result)),
    "nested": _run(_nested),
    "buffers": _run(_once, Recipe(with_batch_norm)),
    "deep-buffers": _run(_once, Recipe(with_deep_batch_norm)),
    "raises": _run(_raises),
    "ranks": _run(_over_ranks, evidence=BesidePlainSums),
}


def as_plain(*prefixes: str) -> Judge:
    """All that plain autograd gives, of names that begin like this, the student's gives too, and nothing but
    zeros beside it; no zeros either for what is frozen.
    """

    def judge(evidence: BesidePlainCalls) -> Iterator[Finding]:
        frozen = [f"grad.{name}" for name in evidence.case.params.get("frozen", ())]
        for answer in evidence.answers:
            plain = evidence.plain[answer.rank]
            for name, tensor in plain.items():
                if name.startswith(prefixes):
                    yield same(f"{name} as plain autograd has it", tensor, answer, name)
            beside = {n: t for n, t in answer.tensors.items() if n.startswith(prefixes) and n not in plain}
            found = ", ".join(name for name, tensor in beside.items() if tensor.any() or name in frozen)
            yield Finding(not found, "no gradient where plain autograd has none", found, answer.rank)

    return judge


def _comes_to_something(evidence: BesidePlainCalls, *runs: str) -> Iterator[Finding]:
    """These runs of `_measured` gave what plain autograd gives: the result, and the input's gradient or the
    parameters'. Without a second run there is neither; who has one lacks nothing that is measured.
    """
    for run in runs:
        yield from _measured_as_plain(evidence, run, "output")
        both = [list(_measured_as_plain(evidence, run, kind)) for kind in ("input_grad", "grad")]
        if not any(found and all(finding.passed for finding in found) for found in both):
            yield from chain.from_iterable(both)


def measured_as_plain(evidence: BesidePlainCalls) -> Iterator[Finding]:
    """What is measured comes to something."""
    yield from _comes_to_something(evidence, *MEASURED_RUNS)


def _measured_as_plain(evidence: BesidePlainCalls, run: str, kind: str) -> Iterator[Finding]:
    for name, tensor in evidence.plain[0].items():
        if name.partition(".")[0] == kind:
            told = f"{name} as plain autograd has it, where {MEASURED_RUNS[run]}"
            yield same(told, tensor, evidence.answers[0], f"{run} {name}")


def runs_twice(evidence: BesidePlainCalls) -> Iterator[Finding]:
    """Once in forward, once more in backward, and to some end."""
    yield from runs_twice_at_all(evidence)
    yield from _comes_to_something(evidence, "counted")


def runs_twice_at_all(evidence: Evidence) -> Iterator[Finding]:
    """The same, where another property is about what comes of it."""
    seen = evidence.answers[0].facts["calls"]
    yield Finding(seen == [1, 2], "1 run after forward, 2 after backward", _counts(seen))


def in_the_same_types(evidence: Evidence) -> Iterator[Finding]:
    """Both runs gave results of one type, whatever backward was called in."""
    answer = evidence.answers[0]
    for where, dtype in (("outside", "torch.float32"), ("inside", "torch.float16")):
        seen = answer.facts[f"types_{where}"]
        told = f"forward {where} autocast, backward inside another: both runs in {dtype}"
        yield Finding(seen == [dtype, dtype], told, f"runs in {', '.join(map(str, seen))}")


def _counts(seen: Sequence[int]) -> str:
    return f"{seen[0]} after forward, {seen[1]} after backward"


def keeps_its_ends(evidence: BesidePlainCalls) -> Iterator[Finding]:
    """Between forward and backward only the inputs and the result are alive, and that is enough."""
    yield from keeps_no_more(evidence)
    yield from _comes_to_something(evidence, "kept", "left")


def keeps_no_more(evidence: BesidePlainCalls) -> Iterator[Finding]:
    """The same, where another property is about what comes of it."""
    facts, most = evidence.answers[0].facts, evidence.result_bytes + SLACK_BYTES
    kept, left = facts["kept_bytes"], facts["left_bytes"]
    yield Finding(kept <= most, f"at most {most} bytes besides parameters and inputs", f"{kept} bytes")
    told = f"at most {most} bytes, with the result, when backward is over and gradients are gone"
    yield Finding(left <= most, told, f"{left} bytes")


def called_as_it_is(evidence: BesidePlainCalls) -> Iterator[Finding]:
    """Without gradients the function is called once, and its result has no graph."""
    answer = evidence.answers[0]
    yield same("output under no_grad", evidence.plain[0]["output"], answer, "output")
    calls, graph = answer.facts["calls"], answer.facts["graph"]
    told = "under no_grad: called once, a result without a graph"
    seen = f"called {calls} times, a result {'with' if graph else 'without'} one"
    yield Finding(calls == 1 and not graph, told, seen)


def inner_runs_thrice(evidence: Evidence) -> Iterator[Finding]:
    """A checkpoint inside one runs three times: the outer one's second run makes it forget again."""
    calls = evidence.answers[0].facts["inner_calls"]
    yield Finding(calls == 3, "the inner function runs 3 times", f"{calls} times")


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
