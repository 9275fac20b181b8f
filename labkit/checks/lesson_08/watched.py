"""What stage 3 holds and when it fetches: a stack of equal layers, watched over a step."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Finding, Judge, every
from labkit.checks.lesson_08.held import (
    CALL_BYTES,
    PATIENCE,
    Life,
    Look,
    bytes_beforehand,
    bytes_held,
    hold_in_process,
)
from labkit.checks.lesson_08.held_back import hold_back
from labkit.checks.lesson_08.net import calls_of, sent, stack, step_plainly
from labkit.checks.lesson_08.stacks import StackEvidence
from labkit.checks.rank import Rank
from labkit.checks.shared.proportion import change_since, in_proportion
from labkit.checks.shared.split import dtype_of
from labkit.checks.shared.twins import each_once
from labkit.record.live import LiveBytes, tensors_of_process

SMALL = 2**14  # what a loss is divided by


def watch(rank: Rank) -> None:
    """A step of equal layers, watched. Facts: at_rest, forward_peak, after_forward, backward_peak,
    after_backward, after_full_weights, after_evaluation, after_an_error; forwards and backwards, when each
    unit was at work; stalled, see `hold_back`. Recordings: first backward, forward, backward. Answers:
    output, of the step that was watched, and at the end "weights NAME".
    """
    log = list[float]()
    others = tensors_of_process()
    before = bytes_beforehand()
    net = stack(rank.case, log)
    sharded = rank.student.FullyShardedModule(net, list(net), rank.group, rank.params["prefetch"])
    _rest(rank, "at_rest", before)
    first, x = rank.inputs["x"].cpu().split(1)
    _use_in_other_ways(rank, sharded, first)
    log.clear()
    rank.answer("output", _watched_step(rank, sharded, x, others, log, before))
    step_plainly(sharded.shards)
    sharded.full_weights()
    _rest(rank, "after_full_weights", before)
    sharded.eval()
    with torch.no_grad():
        sharded(x)
    _rest(rank, "after_evaluation", before)
    sharded.train()
    _fail_on_the_way(rank, sharded, net, x)
    _rest(rank, "after_an_error", before)
    with torch.no_grad():
        sharded(x)
    _rest(rank, "after_the_next", before)
    if rank.case.kind == "watched" and rank.params["prefetch"]:
        hold_back(rank, sharded, net, x)
    _answer_weights(rank, sharded)


def _use_in_other_ways(rank: Rank, sharded: Any, x: Tensor) -> None:
    """Two steps, a forward that no backward follows before the second, and one that is evaluated after it:
    the next step must not wait for them.
    """
    with rank.recording("first backward"):
        small_loss(sharded(x)).backward()
    step_plainly(sharded.shards)
    sharded(x)
    small_loss(sharded(x)).backward()
    step_plainly(sharded.shards)
    with torch.no_grad():
        sharded(x)


def _watched_step(
    rank: Rank, sharded: Any, x: Tensor, others: Iterable[Tensor], log: list[float], before: int
) -> Tensor:
    """The output of a step whose peaks and moments are facts: no more than what passes from layer to layer,
    for which there is room.
    """
    leaving: list[float] = []
    most: dict[str, float] = {**_most(rank.case)}
    if _held_too_much(rank):
        most = dict.fromkeys(most, math.inf)
    live = _PatientOnce([*others, x], most["forward_peak"])
    live.count(tensors_of_process())
    with live:
        with rank.recording("forward") as begin:
            out: Tensor = sharded(x)
        rank.fact("forwards", [moment - begin for moment in log])
        rank.fact("forward_peak", live.peak)
        _rest(rank, "after_forward", before)
        live.restart_peak()
        live.most = most["backward_peak"]
        with rank.recording("backward") as begin:
            _note_backward(out, lambda: leaving.append(time.monotonic()))
            small_loss(out).backward()
    rank.fact("backwards", [moment - begin for moment in leaving])
    rank.fact("backward_peak", live.peak)
    _rest(rank, "after_backward", before)
    return out


class _PatientOnce(LiveBytes):
    """Waits for what a backend still holds until a peak is above `most` all the same, so that a step of many
    operations comes to its end.
    """

    def __torch_dispatch__(self, *args: Any, **kwargs: Any) -> Any:
        out = super().__torch_dispatch__(*args, **kwargs)
        if self.peak > self.most:
            self.most = math.inf
        return out


def small_loss(out: Tensor) -> Tensor:
    """Some steps on it change weights by less than changes the next step's gradients."""
    return out.sum() / SMALL


def _answer_weights(rank: Rank, sharded: Any) -> None:
    for name, tensor in sharded.full_weights().items():
        rank.answer(f"weights {name}", tensor)


def hold_units(rank: Rank) -> None:
    """What steps leave in the process, and what is there while they are made. Fact: process_bytes. Answers:
    "weights NAME", after a step with the gradients of two backwards.
    """
    hold_in_process(rank, partial(_unit_life, rank), most_in_process(rank.case), partial(_step, rank))


def _unit_life(rank: Rank) -> Life[Any]:
    net, x = stack(rank.case, []), rank.inputs["x"].cpu()[-1:]

    def life(look: Look) -> Any:
        turn = ["first"]
        for layer in net.children():
            inner = next(layer.children())
            inner.register_forward_pre_hook(lambda *_: look(f"in the {turn[0]} forward"))
        sharded = rank.student.FullyShardedModule(net, list(net), rank.group, rank.params["prefetch"])
        look("before a step")
        for turn[0] in ("first", "second"):
            out = sharded(x)
            look(f"after the {turn[0]} forward")
            _note_backward(out, lambda: look(f"in the {turn[0]} backward"))
            small_loss(out).backward()
            del out
            look(f"after the {turn[0]} backward")
        sharded.full_weights()
        look("after full_weights")
        return sharded

    return life


def _step(rank: Rank, sharded: Any) -> None:
    step_plainly(sharded.shards)
    _answer_weights(rank, sharded)


def _rest(rank: Rank, when: str, before: int) -> None:
    """Fact `when`: the bytes beside those before."""
    enough = _at_rest(rank.case)[when] + _room(rank.case)
    patience = 0.0 if _held_too_much(rank) else PATIENCE
    rank.fact(when, bytes_held(before + enough, patience) - before)


def _held_too_much(rank: Rank) -> bool:
    """Whether this rank did at rest: nobody waits for it again, so that the case comes to its end."""
    found = rank.result.facts
    most = {when: num_bytes + _room(rank.case) for when, num_bytes in _at_rest(rank.case).items()}
    return any(found[when] > enough for when, enough in most.items() if when in found)


def _fail_on_the_way(rank: Rank, sharded: nn.Module, net: nn.Sequential, x: Tensor) -> None:
    """A forward that an error ends in the middle, in every rank's; in some cases as a key stops a cell."""
    error = KeyboardInterrupt if rank.params.get("interrupted") else ArithmeticError

    def refuse(*_: object) -> None:
        raise error("an error in the middle of forward")

    hook = next(net[len(net) // 2].children()).register_forward_pre_hook(refuse)
    with contextlib.suppress(error):
        sharded(x)
    hook.remove()


def _note_backward(out: Tensor, note: Callable[[], None]) -> None:
    """Call `note` when the gradient of each tanh, from the last layer's on, begins to be computed."""
    node, seen = out.grad_fn, set()
    while node is not None and node not in seen:
        seen.add(node)
        if "Tanh" in node.name():
            node.register_prehook(lambda gradients: note())
        following = [n for n, _ in node.next_functions if n is not None and "Accumulate" not in n.name()]
        node = following[0] if following else None


# -- judges


def _unit_bytes(case: Case) -> int:
    """Of a unit's gradients, or of the masters of its weights."""
    return 4 * int(case.params["width"]) ** 2


def _whole_bytes(case: Case) -> int:
    """Of a unit's weights, while they are whole."""
    return dtype_of(case).itemsize * int(case.params["width"]) ** 2


def _share(case: Case) -> int:
    return case.params["layers"] * _unit_bytes(case) // case.ranks


def _share_of_gradients(case: Case) -> int:
    return _trained(case) * _unit_bytes(case) // case.ranks


def _trained(case: Case) -> int:
    """Units that are not frozen."""
    return case.params["layers"] - len(case.params.get("frozen", ()))


RESTS = (
    "at_rest", "after_forward", "after_backward", "after_full_weights", "after_evaluation", "after_an_error",
    "after_the_next",
)  # fmt: skip
"""When a rank rests."""


def _at_rest(case: Case) -> dict[str, int]:
    """Bytes of its shards whenever a rank rests, after backward of their gradients too."""
    return dict.fromkeys(RESTS, _share(case)) | {"after_backward": _share(case) + _share_of_gradients(case)}


def _room(case: Case) -> int:
    """Bytes beside weights and gradients, fewer than a unit's: what passes from layer to layer, which counts
    where Python keeps it, and half a unit for what a module or a backend makes.
    """
    passing = 4 * int(case.params["width"]) * int(case.params["layers"])
    return passing + _whole_bytes(case) // 2


def most_in_process(case: Case) -> dict[str, int]:
    """By moment, bytes of the shards and of their gradients, and a little; while units are at work also what
    is whole then, and in forward a backend's copies of what is under way.
    """
    peaks, copies = _most(case), (2 + case.params["prefetch"]) * _unit_bytes(case)
    shards, a_pass = _share(case) + _room(case), CALL_BYTES * case.params["layers"]
    both = shards + _share(case)
    return {
        "before a step": shards,
        "in the first forward": peaks["forward_peak"] + copies + a_pass,
        "after the first forward": shards + a_pass,
        "in the first backward": peaks["backward_peak"] + 3 * a_pass,
        "after the first backward": both + 3 * a_pass,
        "in the second forward": peaks["forward_peak"] + _share(case) + copies + 4 * a_pass,
        "after the second forward": both + 4 * a_pass,
        "in the second backward": peaks["backward_peak"] + 6 * a_pass,
        "after the second backward": both + 6 * a_pass,
        "after full_weights": both + 7 * a_pass,
    }


def _most(case: Case) -> dict[str, int]:
    """Of each peak: a unit whole in forward, and those fetched ahead; in backward also gradients of two, and
    room for what a backend copies. The gradient of a unit that is called again waits for its last one.
    Shards of another dtype are rounded for what is under way.
    """
    whole, unit = 1 + case.params["prefetch"], _unit_bytes(case)
    waiting = len(calls_of(case)) - len(set(calls_of(case)))
    rounded = 0 if _whole_bytes(case) == unit else _whole_bytes(case) // case.ranks
    forward = _share(case) + whole * (_whole_bytes(case) + rounded) + _room(case)
    backward = forward + _share_of_gradients(case) + (4 + waiting) * unit
    return {"forward_peak": forward, "backward_peak": backward}


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


in_earnest = every(output_follows, follows((2, 1)))
"""Of the step that is watched, behind two with another row."""


def rests_in_shards(evidence: Evidence) -> Iterator[Finding]:
    """A rank holds its shards, and nothing more, except after backward their gradients too."""
    case = evidence.case
    slack = _room(case)
    for answer in evidence.answers:
        for fact, expected in _at_rest(case).items():
            held = answer.facts[fact]
            told = f"{expected:,} bytes {fact.replace('_', ' ')} (all weights: {case.ranks * _share(case):,})"
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
    for fact, most in _most(case).items():
        peak = answer.facts[fact]
        told = f"{fact.replace('_', ' ')}: at most {most:,} bytes (a unit: {_unit_bytes(case):,})"
        yield Finding(_share(case) <= peak <= most, told, f"{peak:,}", answer.rank)


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
    unit, layers, trained = _unit_bytes(case), case.params["layers"], _trained(case)
    shard = _whole_bytes(case) // case.ranks
    for answer in evidence.answers:
        forward, again = sent(answer, "forward", "all_gather"), sent(answer, "backward", "all_gather")
        scattered = sent(answer, "backward", "reduce_scatter")
        right = forward == [shard] * layers
        told = f"forward: {layers} all_gathers of {shard:,} bytes"
        yield Finding(right, told, str(forward), answer.rank)
        right = again in ([shard] * layers, [shard] * (layers - 1)) and scattered == [unit] * trained
        told = f"backward: {layers} all_gathers of {shard:,} bytes, {trained} reduce_scatters of {unit:,}"
        yield Finding(right, told, f"{again} and {scattered}", answer.rank)
        calls = [c for phase in ("forward", "backward") for c in each_once(answer.collectives[phase])]
        others = {c["op"] for c in calls} - {"all_gather", "reduce_scatter"}
        yield Finding(not others, "no other collective", ", ".join(sorted(others)), answer.rank)


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
            kept = case.params["layers"] - len(gathers)  # the last unit, which may have stayed
            for number, moment in enumerate(began):
                wanted = min(number + 1 + case.params["prefetch"], case.params["layers"]) - kept
                seen = sum(c["start"] < moment for c in gathers)
                told = f"{phase}: {wanted} all_gathers begun when unit {number + 1} of the pass is at work"
                yield Finding(seen == wanted, told, str(seen), answer.rank)
                arrived = sum(c["end"] is not None and c["end"] < moment for c in gathers)
                told = (
                    f"{phase}: {number + 1 - kept} all_gathers waited for when unit {number + 1} is at work"
                )
                yield Finding(arrived <= number + 1 - kept, told, str(arrived), answer.rank)
            if len(began) != case.params["layers"]:
                yield Finding(
                    False, f"{phase} of {case.params['layers']} units", str(len(began)), answer.rank
                )


def watched_case(
    name: str,
    ranks: int,
    seed: int,
    width: int,
    layers: int,
    prefetch: int,
    kind: str = "watched",
    **params: Any,
) -> Case:
    """Equal layers, in float32 where the case does not say otherwise; `width` squared is divided by the
    ranks. interrupted: the forward that fails is stopped with a KeyboardInterrupt. frozen: numbers of layers.
    """
    sizes = {"width": width, "layers": layers, "prefetch": prefetch, "dtype": "float32", **params}
    return Case(name, ranks, sizes, seed, kind=kind, timeout=60.0)


def calls_case(name: str, ranks: int, seed: int, width: int, layers: int, calls: list[int]) -> Case:
    """The same, where some layers are called twice or not at all: `calls` are their numbers, in order."""
    sizes = {"width": width, "layers": layers, "prefetch": 1, "dtype": "float32", "called": calls}
    return Case(name, ranks, sizes, seed, kind="watched-calls", timeout=60.0)
