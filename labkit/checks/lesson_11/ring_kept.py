"""What attention over a ring keeps from forward to backward, and has of other ranks in either."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

import torch
from torch import Tensor

from labkit.checks.case import JSON, RankAnswer
from labkit.checks.exercise import Evidence, Finding, every
from labkit.checks.lesson_11.between import BETWEEN, recorded_throughout
from labkit.checks.lesson_11.partial import OBJECT_BYTES, as_handed
from labkit.checks.lesson_11.ring import PARTS, Whole, message_bytes, sends
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import on_each, same
from labkit.checks.shared.held import bytes_kept
from labkit.checks.shared.inside import as_inside
from labkit.record.live import LiveBytes

MOST = {
    "forward": 13,
    "backward": 20,
}  # tensors of a rank's size at a time: keys and values of 7 others are 14


def saved(leaves: Sequence[Tensor], forward: Callable[[], Tensor]) -> list[JSON]:
    """What of q, k, v, out and lse autograd was given to keep: of what it was not, it cannot tell that it was
    changed before backward.
    """
    given = list[tuple[int, int]]()  # of each tensor the place of its memory, and its numbers

    def pack(tensor: Tensor) -> Tensor:
        given.append((tensor.untyped_storage().data_ptr(), tensor.numel()))
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = forward()
    named = {
        t.untyped_storage().data_ptr(): name for name, t in zip((*PARTS, "out"), (*leaves, out), strict=True)
    }
    found = {named[place] for place, _ in given if place in named}
    rows = out.numel() // out.shape[-1]
    if any(place not in named and numbers == rows for place, numbers in given):
        found.add("lse")
    return sorted(found)


def stays(forward: Callable[[], Tensor]) -> bool:
    """Whether an output that nobody has any more is still there."""
    gc.disable()  # Python's search for circles would find it some time
    dropped = weakref.ref(forward())
    is_there = dropped() is not None
    gc.enable()
    return is_there


def keep(rank: Rank) -> None:
    """Facts kept_bytes: what one forward leaves behind with its output, whoever holds it, as arrays too;
    circle, as `stays` has it; forwards: how many there were.
    Recording: all that is sent, in these and one backward. Answers out and grad.q, .k, .v.
    """
    leaves, forwards = [as_handed(rank, name).requires_grad_() for name in PARTS], count()
    given = [as_inside(leaf) for leaf in leaves]

    def forward() -> Tensor:
        next(forwards)
        out: Tensor = rank.student.RingAttention.apply(*given, rank.group)
        return out

    with recorded_throughout(rank):
        rank.fact("kept_bytes", [bytes_kept(lambda: forward)])
        rank.fact("circle", stays(forward))
        out = forward()
        rank.answer("out", out)
        with rank.attempt("gradients"):
            out.backward(as_handed(rank, "grad"))
    rank.fact("forwards", next(forwards))
    for name, leaf in zip(PARTS, leaves, strict=True):
        rank.answer(f"grad.{name}", leaf.grad)


def gradient_of(name: str) -> str:
    return f"gradient of {name} from the whole sequence"


def are_gradients_of_many(evidence: Whole) -> Iterator[Finding]:
    """Where it is counted what is kept."""
    for answer in evidence.answers:
        for name in PARTS:
            expected = evidence.own(answer.rank, [found[name] for found in evidence.gradients])
            yield same(gradient_of(name), expected, answer, f"grad.{name}")


def sends_no_more_meanwhile(evidence: Whole) -> Iterator[Finding]:
    """Where it is counted what is kept: all forwards and the backward together."""
    for answer in evidence.answers:
        judge = sends(BETWEEN, partial(_messages_of, answer.facts["forwards"]))
        yield from judge(Whole(evidence.case, evidence.inputs, [answer]))


def _messages_of(forwards: int, ranks: int) -> int:
    return forwards * 2 * (ranks - 1) + 4 * ranks - 2


def hold(rank: Rank) -> None:
    """Facts held.forward, held.backward: bytes of tensors at most in each, beside those that were given."""
    leaves = [as_handed(rank, name).requires_grad_() for name in PARTS]
    grad, size = as_handed(rank, "grad"), leaves[0].numel() * leaves[0].element_size()
    with torch.no_grad(), LiveBytes(leaves, MOST["forward"] * size) as forward:
        rank.student.RingAttention.apply(*leaves, rank.group)
    rank.fact("held.forward", forward.peak)
    out = rank.student.RingAttention.apply(*leaves, rank.group)
    with LiveBytes([*leaves, out, grad], MOST["backward"] * size) as backward:
        torch.autograd.grad(out, leaves, grad)
    rank.fact("held.backward", backward.peak)


def holds_a_step(evidence: Evidence) -> Iterator[Finding]:
    """Keys, values and sums of one step, those that come meanwhile, and what a rank makes of its own."""
    for answer in evidence.answers:
        for phase, tensors in MOST.items():
            most, held = tensors * message_bytes(evidence, answer.rank), answer.facts[f"held.{phase}"]
            told = f"{phase}: at most {most:,} bytes at a time, with keys and values of one step and the next"
            yield Finding(held <= most, told, f"{held:,} bytes", answer.rank)


def _keeps_its_own(evidence: Evidence, answer: RankAnswer) -> Finding:
    """The output and the lse beside q, k and v, which the caller has."""
    own = message_bytes(evidence, answer.rank)
    lse = own // evidence.case.params["shape"][-1]
    objects = OBJECT_BYTES if evidence.case.kind == "kept" else 256
    most, kept = own + lse + objects, max(answer.facts["kept_bytes"])
    told = f"at most {most:,} bytes kept: the output and its lse"
    return Finding(kept <= most, told, f"{kept:,} bytes", answer.rank)


def _saved_for_backward(evidence: Evidence, answer: RankAnswer) -> Finding:
    found = answer.facts["saved"]
    told = "q, k, v, the output and its lse saved by ctx.save_for_backward"
    return Finding(len(found) == len(PARTS) + 2, told, f"of these {', '.join(found) or 'none'}", answer.rank)


def _goes_with_its_output(evidence: Evidence, answer: RankAnswer) -> Finding:
    told = "an output that nobody has any more is gone, and what was kept with it"
    return Finding(not answer.facts["circle"], told, "its own graph holds it", answer.rank)


KEPT = every(on_each(_keeps_its_own), on_each(_goes_with_its_output))
SAVED = every(KEPT, on_each(_saved_for_backward))
