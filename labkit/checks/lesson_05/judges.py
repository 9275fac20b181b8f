"""What the cases of `checkpoint(function, *args)` must show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch

from labkit.checks.exercise import Evidence, Finding, Judge
from labkit.checks.lesson_05.measuring import MEASURED_RUNS, SLACK_BYTES
from labkit.checks.lesson_05.recomputing import BesidePlainCalls
from labkit.checks.shared.beside import same


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
    for answer in evidence.answers:
        for name, tensor in evidence.plain[answer.rank].items():
            if name.partition(".")[0] == kind:
                told = f"{name} as plain autograd has it, where {MEASURED_RUNS[run]}"
                yield same(told, tensor, answer, f"{run} {name}")


def runs_twice(evidence: BesidePlainCalls) -> Iterator[Finding]:
    """Once in forward, once more in backward, and to some end."""
    yield from runs_twice_at_all(evidence)
    yield from _comes_to_something(evidence, "counted")


def runs_twice_at_all(evidence: Evidence) -> Iterator[Finding]:
    """The same, where another property is about what comes of it."""
    for answer in evidence.answers:
        seen = answer.facts["calls"]
        yield Finding(seen == [1, 2], "1 run after forward, 2 after backward", _counts(seen), answer.rank)


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
    most = evidence.result_bytes + SLACK_BYTES
    between = f"at most {most} bytes besides parameters and inputs"
    after = f"at most {most} bytes, with the result, when backward is over and gradients are gone"
    never = f"at most {SLACK_BYTES} bytes when the result is dropped and no backward comes"
    for answer in evidence.answers:
        kept, left, dropped = (answer.facts[f"{when}_bytes"] for when in ("kept", "left", "dropped"))
        yield Finding(kept <= most, between, f"{kept} bytes", answer.rank)
        yield Finding(left <= most, after, f"{left} bytes", answer.rank)
        yield Finding(dropped <= SLACK_BYTES, never, f"{dropped} bytes", answer.rank)


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
    calls = evidence.answers[0].facts["calls"][-1]
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
