"""What stage 3 holds and when it fetches: a stack of equal layers, watched over a step."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checks.case import Case
from labkit.checks.lesson_08.circumstances import adds_up, as_input, backwards_before, in_mode
from labkit.checks.lesson_08.held import PATIENCE, Life, Look, bytes_beforehand, bytes_held, hold_in_process
from labkit.checks.lesson_08.held_back import hold_back
from labkit.checks.lesson_08.net import stack, step_plainly
from labkit.checks.lesson_08.stack_bytes import most_at_peaks, most_at_rest, most_in_process, room
from labkit.checks.rank import Rank
from labkit.record.live import LiveBytes, tensors_of_process

SMALL = 2**14  # what a loss is divided by


def watch(rank: Rank) -> None:
    """A step of equal layers, watched. Facts: at_rest, forward_peak, after_forward, backward_peak,
    after_backward, after_full_weights, evaluation_peak, after_evaluation, after_an_error_in_evaluation,
    after_an_error, after_the_next; forwards and backwards, when each unit was at work; stalled, see
    `hold_back`. Recordings: first backward, forward, backward. Answers: output, of the step that was watched,
    and at the end "weights NAME".
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
    rank.answer("output", _watched_step(rank, sharded, as_input(rank.case, x), others, log, before))
    step_plainly(sharded.shards)
    sharded.full_weights()
    _rest(rank, "after_full_weights", before)
    sharded.eval()
    with torch.no_grad():
        _watched_evaluation(rank, sharded, x, others)
        _rest(rank, "after_evaluation", before)
        _fail_on_the_way(rank, sharded, net, x)
    _rest(rank, "after_an_error_in_evaluation", before)
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
    """Two steps or more, a forward that no backward follows before the second, and one that is evaluated
    after the last: the next step must not wait for them. Where that is to find the last one's gradients,
    nobody steps.
    """
    with rank.recording("first backward"):
        small_loss(sharded(x)).backward()
    for number in range(1, backwards_before(rank.case)):
        step_plainly(sharded.shards)
        if number == 1:
            sharded(x)
        small_loss(sharded(x)).backward()
    if not adds_up(rank.case):
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
    in_mode(rank.case, sharded)
    live = _counting(rank, [*others, x], "forward_peak")
    with live:
        with rank.recording("forward") as begin:
            out: Tensor = sharded(x)
        rank.fact("forwards", [moment - begin for moment in log])
        rank.fact("forward_peak", live.peak)
        _rest(rank, "after_forward", before)
        live.restart_peak()
        live.most = _enough(rank, "backward_peak")
        with rank.recording("backward") as begin:
            _note_backward(out, lambda: leaving.append(time.monotonic()))
            small_loss(out).backward()
    rank.fact("backwards", [moment - begin for moment in leaving])
    rank.fact("backward_peak", live.peak)
    _rest(rank, "after_backward", before)
    return out


def _watched_evaluation(rank: Rank, sharded: Any, x: Tensor, others: Iterable[Tensor]) -> None:
    """A forward whose peak is a fact."""
    live = _counting(rank, [*others, x], "evaluation_peak")
    with live:
        sharded(x)
    rank.fact("evaluation_peak", live.peak)


def _counting(rank: Rank, others: Iterable[Tensor], peak: str) -> LiveBytes:
    """What is there now counts, but for the others."""
    live = _PatientOnce(others, _enough(rank, peak))
    live.count(tensors_of_process())
    return live


def _enough(rank: Rank, peak: str) -> float:
    return math.inf if _held_too_much(rank) else most_at_peaks(rank.case)[peak]


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
    enough = most_at_rest(rank.case)[when] + room(rank.case)
    patience = 0.0 if _held_too_much(rank) else PATIENCE
    rank.fact(when, bytes_held(before + enough, patience) - before)


def _held_too_much(rank: Rank) -> bool:
    """Whether this rank did at rest: nobody waits for it again, so that the case comes to its end."""
    found = rank.result.facts
    most = {when: num_bytes + room(rank.case) for when, num_bytes in most_at_rest(rank.case).items()}
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
    Beside these, what `circumstances` lists.
    """
    sizes = {"width": width, "layers": layers, "prefetch": prefetch, "dtype": "float32", **params}
    return Case(name, ranks, sizes, seed, kind=kind, timeout=60.0)


def calls_case(
    name: str, ranks: int, seed: int, width: int, layers: int, calls: list[int], **params: Any
) -> Case:
    """The same, where some layers are called twice or not at all: `calls` are their numbers, in order."""
    return watched_case(name, ranks, seed, width, layers, 1, "watched-calls", called=calls, **params)
