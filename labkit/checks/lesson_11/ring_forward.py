"""What attention over a ring must show in forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import JSON, RankAnswer
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
from labkit.checks.shared.beside import Call, all_awaited, calls_text, on_each, same, stays_in_group
from labkit.checks.shared.places import enter_group, place_of
from labkit.record.current import current_recorder
from labkit.record.entry import Entry
from labkit.record.recorder import Recorder

Attend = Callable[[Tensor, Tensor, Tensor, bool], Partial]
Opened = Sequence[tuple[float, float, float]]  # of each time: as `Asked` has them
SHARPER = 1.75  # times the scores: what another `attend` gives is told apart


def _block(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> Partial:
    """One block, as the lesson's own function computes it."""
    rows, columns = (torch.arange(t.shape[-2], device=t.device) for t in (q, k))
    return whole_attention(q, k, v, causal(rows if diagonal else rows + len(columns), columns))


def _sharper_block(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> Partial:
    """A block of another attention, whose scores are `SHARPER` times as large."""
    return _block(SHARPER * q, k, v, diagonal)


def _go_round(rank: Rank) -> None:
    """Answers ring.out, .lse, .empty, read when a later call with other numbers is over, and sharper.out and
    so on of the last, with attention of another kind. The first and the last get inputs that ask for
    gradients, where no graph is made, as inside of an autograd function. Facts: changed; of each call open
    and beside, as `Asked` has them.
    """
    group, recorder = enter_group(rank), current_recorder()
    assert recorder is not None
    given = {name: as_handed(rank, name) for name in PARTS}
    with recorded_throughout(rank):
        asked = _four_times(rank, group, recorder, list(given.values()))
    rank.fact("open", [one.opened for one in asked])
    rank.fact("beside", [one.beside() for one in asked])
    tell_changed(rank, given)


def _four_times(rank: Rank, group: dist.ProcessGroup, recorder: Recorder, given: list[Tensor]) -> list[Asked]:
    found = list[Asked]()

    def go(block: Attend, *inputs: Tensor) -> Partial:
        asked = Asked(recorder, block, math.prod(given[0].shape[:-2]))
        with rank.recording("forward"):
            partial: Partial = rank.student.ring_forward(*inputs, group, asked)
        asked.last = len(recorder.entries)
        found.append(asked)
        return partial

    with torch.no_grad():
        go(_block, *(t.requires_grad_() for t in others(*given)))
    partial = go(_block, *given)
    go(_block, *(1.0 - t for t in given))
    answer_partial(rank, "ring", partial)
    with torch.no_grad():
        sharper = go(_sharper_block, *(t.detach().requires_grad_() for t in given))
    answer_partial(rank, "sharper", sharper)
    return found


class Asked:
    """An `attend` for one call, which sees when it is asked.

    opened: for each time, the bytes of receives that had been started by then and not been waited for, those
    of the ones that had been waited for, and how many pairs of a query and a key, of all heads together, so
    that some of them at a time are as good.
    """

    def __init__(self, recorder: Recorder, block: Attend, heads: int) -> None:
        self.opened = list[JSON]()
        self._recorder, self._block, self._heads = recorder, block, heads
        self._behind, self._first = set[int](), len(recorder.entries)
        self.last: int | None = None  # the entry after the call's

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> Partial:
        entries = self._entries()
        self._behind.update(id(e) for e in entries if e.end is None)
        receives = [e for e in entries if e.op == "recv"]
        come = sum(e.num_bytes for e in receives if e.end is not None)
        pairs = math.prod(q.shape[:-1]) * k.shape[-2] / self._heads
        self.opened.append([sum(e.num_bytes for e in receives) - come, come, pairs])
        return self._block(q, k, v, diagonal)

    def beside(self) -> JSON:
        """The operation and bytes of each message that was under way at none of these times."""
        messages = [e for e in self._entries() if e.op in ("send", "recv")]
        return [[e.op, e.num_bytes] for e in messages if id(e) not in self._behind]

    def _entries(self) -> list[Entry]:
        return self._recorder.entries[self._first : self.last]


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


def _work(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
    """However `attend` is asked: two blocks side by side at once, or those on the diagonal in parts."""
    size, block = place_of(evidence.case, answer.rank).size, _of_a_block(evidence, answer.rank)
    fewest = (2 * size - 1) + (1 + block**-0.5)  # half of each block on the diagonal is seen
    told = f"attend asked for {2 * size + 1} blocks' worth of queries and keys"
    for opened in answer.facts["open"]:
        seen = sum(pairs for *_, pairs in opened) / block
        yield Finding(fewest - 1e-6 <= seen <= 2 * size + 1 + 1e-6, told, f"{seen:g}", answer.rank)


def _in_each_call(evidence: Evidence) -> Iterator[Finding]:
    return (finding for answer in evidence.answers for finding in _work(evidence, answer))


def _open_meanwhile(evidence: Evidence, answer: RankAnswer, opened: Opened) -> Finding:
    """The keys of another rank make two blocks; nothing is to come any more while the last two are made."""
    block, of_a_rank = _of_a_block(evidence, answer.rank), 2 * message_bytes(evidence, answer.rank)
    total = sum(pairs for *_, pairs in opened) / block
    idle = sum(pairs for under_way, _, pairs in opened if under_way < of_a_rank) / block
    told = "keys and values of a rank under way while attend computes blocks, but for the last two blocks"
    seen = f"none, or a part of them, in {idle:g} of {total:g} blocks"
    return Finding(idle <= 2 + 1e-6 < total, told, seen, answer.rank)


def _all_behind(answer: RankAnswer, beside: Sequence[Call]) -> Finding:
    told = "every message under way while attend computes blocks"
    return Finding(not beside, told, f"between blocks: {calls_text(beside)}", answer.rank)


def _step_by_step(evidence: Evidence, answer: RankAnswer, opened: Opened) -> Finding:
    """Keys of a rank make two blocks. Who gathers them all first has them many steps too early, though a last
    receive be left open.
    """
    of_two_blocks = 2 * _of_a_block(evidence, answer.rank)
    of_a_rank = 2 * message_bytes(evidence, answer.rank)
    done = early = 0.0
    for _, come, pairs in opened:
        early = max(early, come / of_a_rank - done / of_two_blocks)
        done += pairs
    told = "keys and values of another rank come at most a step before their blocks are computed"
    return Finding(early <= 1 + 1e-6, told, f"those of {early:g} ranks waited", answer.rank)


def _behind_blocks(evidence: Evidence) -> Iterator[Finding]:
    """In a group of one there is nothing to wait for."""
    for answer in evidence.answers:
        if place_of(evidence.case, answer.rank).size > 1:
            for opened, beside in zip(answer.facts["open"], answer.facts["beside"], strict=True):
                yield _open_meanwhile(evidence, answer, opened)
                yield _all_behind(answer, [(op, num_bytes) for op, num_bytes in beside])
                yield _step_by_step(evidence, answer, opened)


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
            {"values": every(_in_each_call, _by_what_is_handed)},
            dict.fromkeys(("subgroup", "alone"), every(_in_each_call, _by_what_is_handed)),
        ),
        Property(
            "overlap",
            "mechanism",
            2,
            "The next keys and values are on their way while attend computes blocks, all blocks of a step.",
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
