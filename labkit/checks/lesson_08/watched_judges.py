"""Whether a stack of equal layers holds no more than its shards, fetches in turn, and sends no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge, every
from labkit.checks.lesson_08.circumstances import backwards_before
from labkit.checks.lesson_08.net import sent
from labkit.checks.lesson_08.stack_bytes import (
    most_at_peaks,
    most_at_rest,
    room,
    share,
    trained,
    unit_bytes,
    whole_bytes,
)
from labkit.checks.lesson_08.stacks import StackEvidence
from labkit.checks.shared.proportion import change_since, in_proportion
from labkit.checks.shared.twins import each_once


def follows(times: Sequence[int]) -> Judge:
    """Where bytes and calls are counted, the weights have moved along the plain stack's gradients, of which
    those of each row were stepped so many times.
    """

    def judge(evidence: StackEvidence) -> Iterator[Finding]:
        gradients = list(evidence.gradients(times).values())
        for answer in evidence.answers:
            seen = [
                change_since(start, answer.tensors[f"weights {name}"])
                for name, start in evidence.start.items()
            ]
            yield in_proportion("the change of the weights", gradients, seen, answer.rank)

    return judge


def output_follows(evidence: StackEvidence) -> Iterator[Finding]:
    """The output of the watched step is the plain stack's."""
    for answer in evidence.answers:
        expected, seen = evidence.output(answer.rank), answer.tensors.get("output")
        yield in_proportion("the output", [expected], [seen], answer.rank)


def weights_follow(evidence: StackEvidence) -> Iterator[Finding]:
    """The weights have moved along the gradients of the watched step, behind those with another row."""
    return iter(follows((backwards_before(evidence.case), 1))(evidence))


in_earnest = every(output_follows, weights_follow)
"""Of the step that is watched."""


def rests_in_shards(evidence: Evidence) -> Iterator[Finding]:
    """A rank holds its shards, and nothing more, except after backward their gradients too."""
    case = evidence.case
    slack = room(case)
    for answer in evidence.answers:
        for fact, expected in most_at_rest(case).items():
            held = answer.facts[fact]
            told = f"{expected:,} bytes {fact.replace('_', ' ')} (all weights: {case.ranks * share(case):,})"
            yield Finding(expected <= held <= expected + slack, told, f"{held:,}", answer.rank)


def stays_small(evidence: Evidence) -> Iterator[Finding]:
    """The bytes of both peaks, and gradients that leave in turn."""
    for answer in evidence.answers:
        yield from _peaks(evidence.case, answer)
        yield _leaves_at_once(evidence.case, answer)
        yield from _leave_in_turn(answer)


def peaks_stay_small(evidence: Evidence) -> Iterator[Finding]:
    """The bytes of both peaks."""
    for answer in evidence.answers:
        yield from _peaks(evidence.case, answer)


def _peaks(case: Case, answer: RankAnswer) -> Iterator[Finding]:
    for fact, most in most_at_peaks(case).items():
        peak = answer.facts[fact]
        told = f"{fact.replace('_', ' ')}: at most {most:,} bytes (a unit: {unit_bytes(case):,})"
        yield Finding(share(case) <= peak <= most, told, f"{peak:,}", answer.rank)


def _leaves_at_once(case: Case, answer: RankAnswer) -> Finding:
    """In the first backward too, of which torch keeps something so that its bytes tell nothing."""
    calls = [c["op"] for c in answer.collectives["first backward"] if c["source"] == "python"]
    last_gather = max((n for n, op in enumerate(calls) if op == "all_gather"), default=0)
    gone = calls[:last_gather].count("reduce_scatter")
    least = case.params["layers"] - 3 - case.params["prefetch"]
    told = f"at least {least} units' gradients scattered before the last gather of the first backward"
    return Finding(gone >= least, told, str(gone), answer.rank)


def _leave_in_turn(answer: RankAnswer) -> Iterator[Finding]:
    """While backward is in a unit, the gradients of one more at most have not begun to leave."""
    starts = [c["start"] for c in answer.collectives["backward"] if c["op"] == "reduce_scatter"]
    for number, moment in enumerate(answer.facts["backwards"], 1):
        begun = sum(start < moment for start in starts)
        told = f"{max(0, number - 2)} reduce_scatters begun, or more, when backward is in its unit {number}"
        yield Finding(begun >= number - 2, told, str(begun), answer.rank)


def three_passes(evidence: Evidence) -> Iterator[Finding]:
    """Forward gathers each unit once; backward gathers each once, perhaps not the last, and scatters each."""
    case = evidence.case
    unit, layers, units = unit_bytes(case), case.params["layers"], trained(case)
    shard = whole_bytes(case) // case.ranks
    for answer in evidence.answers:
        forward, again = sent(answer, "forward", "all_gather"), sent(answer, "backward", "all_gather")
        scattered = sent(answer, "backward", "reduce_scatter")
        if case.params.get("bias"):  # a unit may have several flat tensors, whose bytes are those of one
            forward, again = _together(forward, shard), _together(again, shard)
            scattered = _together(scattered, unit)
        right = forward == [shard] * layers
        told = f"forward: {layers} all_gathers of {shard:,} bytes"
        yield Finding(right, told, str(forward), answer.rank)
        right = again in ([shard] * layers, [shard] * (layers - 1)) and scattered == [unit] * units
        told = f"backward: {layers} all_gathers of {shard:,} bytes, {units} reduce_scatters of {unit:,}"
        yield Finding(right, told, f"{again} and {scattered}", answer.rank)
        calls = [c for phase in ("forward", "backward") for c in each_once(answer.collectives[phase])]
        others = {c["op"] for c in calls} - {"all_gather", "reduce_scatter"}
        yield Finding(not others, "no other collective", ", ".join(sorted(others)), answer.rank)


def _together(sizes: Sequence[int], unit: int) -> list[int]:
    """Sizes of calls, of which those that follow each other and together make a unit are one."""
    found, left = list[int](), 0
    for size in sizes:
        left += size
        if left >= unit:
            found.append(left)
            left = 0
    return [*found, left] if left else found


def fetches_ahead(evidence: Evidence) -> Iterator[Finding]:
    """When a unit is at work, its own gather and those of as many more as were asked for have begun, and of
    these nobody has waited for more than its own.
    """
    case = evidence.case
    for answer in evidence.answers:
        for phase, moments in (("forward", "forwards"), ("backward", "backwards")):
            gathers = [
                c for c in answer.collectives[phase] if c["op"] == "all_gather" and c["source"] == "python"
            ]
            began = answer.facts[moments]
            several = case.params.get("bias") and len(gathers) > case.params["layers"]
            each = 2 if several else 1  # flat tensors of a unit
            kept = case.params["layers"] - len(gathers) // each  # the last unit, which may have stayed
            for number, moment in enumerate(began):
                wanted = min(number + 1 + case.params["prefetch"], case.params["layers"]) - kept
                seen = sum(c["start"] < moment for c in gathers) // each
                told = f"{phase}: {wanted} all_gathers begun when unit {number + 1} of the pass is at work"
                yield Finding(seen == wanted, told, str(seen), answer.rank)
                arrived = sum(c["end"] is not None and c["end"] < moment for c in gathers) // each
                told = (
                    f"{phase}: {number + 1 - kept} all_gathers waited for when unit {number + 1} is at work"
                )
                yield Finding(arrived <= number + 1 - kept, told, str(arrived), answer.rank)
            if len(began) != case.params["layers"]:
                yield Finding(
                    False, f"{phase} of {case.params['layers']} units", str(len(began)), answer.rank
                )
