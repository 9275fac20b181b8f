"""What attention over a ring must show in forward."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_11.between import recorded_throughout, single_numbers_between
from labkit.checks.lesson_11.partial import (
    Partial,
    answer_partial,
    as_handed,
    causal,
    reported,
    tell_changed,
    unchanged,
    whole_attention,
)
from labkit.checks.lesson_11.ring import (
    PARTS,
    TORCHS_OWN,
    Whole,
    message_bytes,
    own_tokens_of,
    ring_cases,
    ring_inputs,
    sends,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.again import others
from labkit.checks.shared.beside import all_awaited, calls_text, on_each, same, stays_in_group
from labkit.checks.shared.places import enter_group, place_of
from labkit.record.current import current_recorder
from labkit.record.recorder import Recorder

SHARPER = 1.75  # times the scores: what another `attend` gives is told apart


def _block(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> Partial:
    """One block, as the lesson's own function computes it."""
    rows, columns = (torch.arange(t.shape[-2], device=t.device) for t in (q, k))
    return whole_attention(q, k, v, causal(rows if diagonal else rows + len(columns), columns))


def _sharper_block(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> Partial:
    """A block of another attention, whose scores are `SHARPER` times as large."""
    return _block(SHARPER * q, k, v, diagonal)


def _go_round(rank: Rank) -> None:
    """Answers ring.out, .lse, .empty, read when a second call with other numbers is over, and sharper.out and
    so on of a third, with attention of another kind. Facts: changed;
    open: for each time that attention was asked for, the receives that had been started by then and not been
    waited for, the bytes of those that had been waited for, and how many pairs of a query and a key, of all
    heads together, so that some of them at a time are as good; beside: the operation and bytes of each
    message that was under way at none of these times.
    """
    group, recorder = enter_group(rank), current_recorder()
    assert recorder is not None
    given = {name: as_handed(rank, name) for name in PARTS}
    with recorded_throughout(rank):
        _four_times(rank, group, recorder, list(given.values()))
    tell_changed(rank, given)


def _four_times(rank: Rank, group: dist.ProcessGroup, recorder: Recorder, given: list[Tensor]) -> None:
    with rank.recording("forward"):
        rank.student.ring_forward(*others(*given), group, _block)
    opened, behind = list[list[float]](), set[int]()
    first, heads = len(recorder.entries), math.prod(given[0].shape[:-2])

    def attend(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> Partial:
        behind.update(id(e) for e in recorder.entries[first:] if e.end is None)
        receives = [e for e in recorder.entries[first:] if e.op == "recv"]
        come = sum(e.num_bytes for e in receives if e.end is not None)
        pairs = math.prod(q.shape[:-1]) * k.shape[-2] / heads
        opened.append([sum(e.end is None for e in receives), come, pairs])
        return _block(q, k, v, diagonal)

    with rank.recording("forward"):
        partial = rank.student.ring_forward(*given, group, attend)
    messages = [e for e in recorder.entries[first:] if e.op in ("send", "recv")]
    rank.fact("beside", [[e.op, e.num_bytes] for e in messages if id(e) not in behind])
    with rank.recording("forward"):
        rank.student.ring_forward(*(1.0 - t for t in given), group, _block)
    answer_partial(rank, "ring", partial)
    with rank.recording("forward"):
        sharper = rank.student.ring_forward(*given, group, _sharper_block)
    answer_partial(rank, "sharper", sharper)
    rank.fact("open", opened)


def _is_attention(evidence: Whole) -> Iterator[Finding]:
    for answer in evidence.answers:
        out = evidence.own(answer.rank, [out for out, _ in evidence.partials])
        lse = evidence.own(answer.rank, [lse for _, lse in evidence.partials], dim=-1)
        for name, tensor in reported("ring", (out, lse)).items():
            told = f"{name.rpartition('.')[2]} of this rank's queries over the whole sequence"
            yield same(told, tensor, answer, name)
        yield unchanged(evidence, answer)


def _by_what_is_handed(evidence: Whole) -> Iterator[Finding]:
    """What an `attend` of another kind gives is what comes out."""
    sharper = Whole(evidence.case, evidence.inputs | {"q": SHARPER * evidence.inputs["q"]}, evidence.answers)
    for answer in evidence.answers:
        out = evidence.own(answer.rank, [out for out, _ in sharper.partials])
        told = "the output of whatever `attend` is handed over, here one with sharper scores"
        yield same(told, out, answer, "sharper.out")


def _of_a_block(evidence: Evidence, rank: int) -> int:
    """Pairs of a query and a key in one half of the rank's queries and one of keys."""
    return (evidence.case.params["shape"][-2] // place_of(evidence.case, rank).size // 2) ** 2


def _work(evidence: Evidence, answer: RankAnswer) -> Finding:
    """However `attend` is asked: two blocks side by side at once, or those on the diagonal in parts."""
    size, block = place_of(evidence.case, answer.rank).size, _of_a_block(evidence, answer.rank)
    seen = sum(pairs for *_, pairs in answer.facts["open"]) / block
    fewest = (2 * size - 1) + (1 + block**-0.5)  # half of each block on the diagonal is seen
    told = f"attend asked for {2 * size + 1} blocks' worth of queries and keys"
    return Finding(fewest - 1e-6 <= seen <= 2 * size + 1 + 1e-6, told, f"{seen:g}", answer.rank)


def _open_meanwhile(evidence: Evidence, answer: RankAnswer) -> Finding:
    """The keys of another rank make two blocks; nothing is to come any more while the last two are made."""
    opened, block = answer.facts["open"], _of_a_block(evidence, answer.rank)
    total = sum(pairs for *_, pairs in opened) / block
    idle = sum(pairs for receives, _, pairs in opened if not receives) / block
    told = "a receive under way while attend computes blocks, but for the two blocks of the last keys"
    seen = f"none in {idle:g} of {total:g} blocks"
    return Finding(idle <= 2 + 1e-6 < total, told, seen, answer.rank)


def _all_behind(evidence: Evidence, answer: RankAnswer) -> Finding:
    beside = [(op, num_bytes) for op, num_bytes in answer.facts["beside"]]
    told = "every message under way while attend computes blocks"
    return Finding(not beside, told, f"between blocks: {calls_text(beside)}", answer.rank)


def _step_by_step(evidence: Evidence, answer: RankAnswer) -> Finding:
    """Keys of a rank make two blocks. Who gathers them all first has them many steps too early, though a last
    receive be left open.
    """
    of_two_blocks = 2 * _of_a_block(evidence, answer.rank)
    of_a_rank = 2 * message_bytes(evidence, answer.rank)
    done = early = 0.0
    for _, come, pairs in answer.facts["open"]:
        early = max(early, come / of_a_rank - done / of_two_blocks)
        done += pairs
    told = "keys and values of another rank come at most a step before their blocks are computed"
    return Finding(early <= 1 + 1e-6, told, f"those of {early:g} ranks waited", answer.rank)


def _behind_blocks(evidence: Evidence) -> Iterator[Finding]:
    """In a group of one there is nothing to wait for."""
    for answer in evidence.answers:
        if place_of(evidence.case, answer.rank).size > 1:
            yield from (look(evidence, answer) for look in (_open_meanwhile, _all_behind, _step_by_step))


FORWARD = Run(_go_round, ring_inputs, own_tokens_of, Whole)
EXERCISE = Exercise(
    "11.ring-forward",
    "Keys and values go round",
    ("ring_forward",),
    dict.fromkeys(("values", "subgroup", "alone"), FORWARD),
    ring_cases,
    (
        Property(
            "values",
            "numbers",
            3,
            "Each rank's output and lse are those over the whole sequence.",
            "which keys have arrived: after step i those of the i-th rank before",
            {"values": _is_attention},
        ),
        Property(
            "messages",
            "mechanism",
            2,
            "Keys and values go n - 1 steps to the next rank, and nothing else is sent.",
            "the last step needs no message",
            {
                "values": every(
                    sends("forward", lambda n: 2 * (n - 1)),
                    on_each(lambda _, answer: all_awaited(answer)),
                    single_numbers_between(0),
                )
            },
            {"subgroup": sends("forward", lambda n: 2 * (n - 1))},
        ),
        Property(
            "blocks",
            "mechanism",
            1,
            "2n + 1 blocks are computed on every rank, by the attend that was handed in.",
            "pairs of halves in the future are computed too",
            {"values": every(on_each(_work), _by_what_is_handed)},
            dict.fromkeys(("subgroup", "alone"), every(on_each(_work), _by_what_is_handed)),
        ),
        Property(
            "overlap",
            "mechanism",
            2,
            "The next keys are on their way while attend computes blocks.",
            "messages are started before the blocks, and waited for after them",
            {"values": _behind_blocks},
            {"subgroup": _behind_blocks},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, on one rank alone, and on views of tensors.",
            "a rank of the group was used as a global rank",
            {"subgroup": every(_is_attention, stays_in_group), "alone": _is_attention},
        ),
    ),
    builds_on=("11.merge-partials", "11.own-tokens"),
    forbids=TORCHS_OWN,
)
