"""What attention over a ring must show, in forward and in backward."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_11.partial import (
    OBJECT_BYTES,
    PATIENCE,
    Partial,
    answer_partial,
    as_handed,
    causal,
    queries_keys_values,
    reported,
    tell_changed,
    unchanged,
    whole_attention,
)
from labkit.checks.lesson_11.tokens import zigzag
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import (
    all_awaited,
    calls_of,
    calls_text,
    held_since,
    on_each,
    same,
    stays_in_group,
    storages,
)
from labkit.checks.shared.held import bytes_kept
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.record.current import current_recorder

PARTS = ("q", "k", "v")
_PRIVATE = "torch.distributed.tensor.experimental._context_parallel._attention"
TORCHS_OWN = (
    "torch.nn.functional.scaled_dot_product_attention",
    f"{_PRIVATE}._templated_ring_attention",
    f"{_PRIVATE}._templated_ring_attention_backward",
)


def ring_case(name: str, kind: str, ranks: int, shape: list[int], seed: int, **params: Any) -> Case:
    """shape: [..., s, d] of the whole sequence. scale: of the scores. quiet: ranks whose outputs have
    a gradient of zeros. frozen: of q, k and v, what needs no gradient.
    """
    return Case(name, ranks, {"shape": shape, **params}, seed, kind=kind, timeout=PATIENCE)


def _cases(seed: int) -> list[Case]:
    return [
        ring_case("three ranks", "values", 3, [2, 2, 24, 4], seed, late=[1]),
        ring_case("four ranks, float32", "values", 4, [3, 16, 6], seed, dtype="float32", quiet=[2]),
        ring_case("scores of hundreds", "values", 2, [1, 2, 16, 4], seed, scale=600.0),
        ring_case("crossed groups", "subgroup", 4, [1, 2, 8, 4], seed, groups=[[0, 3], [1, 2]], frozen=["k"]),
        ring_case("alone", "alone", 1, [2, 6, 1], seed),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """One sequence for each group: [groups, ..., s, d]."""
    each = [queries_keys_values(case, generator, "grad") for _ in groups_of(case)]
    found = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    for rank in case.params.get("quiet", []):
        place = place_of(case, rank)
        own = zigzag(case.params["shape"][-2], place.position, place.size)
        found["grad"][place.index][..., own, :] = 0.0
    return found


def _own(case: Case, inputs: Inputs, rank: int) -> Inputs:
    place = place_of(case, rank)
    own = zigzag(case.params["shape"][-2], place.position, place.size)
    return {name: t[place.index][..., own, :].contiguous() for name, t in inputs.items()}


@dataclass(frozen=True)
class Whole(Evidence):
    """With attention over each group's whole sequence, and its gradients."""

    @cached_property
    def partials(self) -> list[Partial]:
        positions = torch.arange(self.case.params["shape"][-2])
        sees = causal(positions, positions)
        return [
            whole_attention(q, k, v, sees)
            for q, k, v in zip(*(self.inputs[name] for name in PARTS), strict=True)
        ]

    @cached_property
    def gradients(self) -> list[dict[str, Tensor]]:
        positions = torch.arange(self.case.params["shape"][-2])
        sees = causal(positions, positions)
        found = []
        for group in range(len(groups_of(self.case))):
            leaves = [self.inputs[name][group].clone().requires_grad_() for name in PARTS]
            q, k, v = leaves
            out, _ = whole_attention(q, k, v, sees)
            gradients = torch.autograd.grad(out, leaves, self.inputs["grad"][group])
            found.append(dict(zip(PARTS, gradients, strict=True)))
        return found

    def own(self, rank: int, of_groups: Sequence[Tensor], dim: int = -2) -> Tensor:
        """The rank's tokens of its group's tensor."""
        place = place_of(self.case, rank)
        own = zigzag(self.case.params["shape"][-2], place.position, place.size)
        return of_groups[place.index].index_select(dim, torch.tensor(own))


# -- forward


def _block(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> Partial:
    """One block, as the lesson's own function computes it."""
    rows, columns = (torch.arange(t.shape[-2], device=t.device) for t in (q, k))
    return whole_attention(q, k, v, causal(rows if diagonal else rows + len(columns), columns))


def _go_round(rank: Rank) -> None:
    """Answers ring.out, .lse, .empty, read when a second call with other numbers is over. Facts: changed;
    open: for each time that attention was asked for, the receives that had been started by then and not been
    waited for, the bytes of those that had been waited for, and how many pairs of a query and a key, of all
    heads together, so that some of them at a time are as good; beside: the operation and bytes of each
    message that was under way at none of these times.
    """
    group, recorder = enter_group(rank), current_recorder()
    assert recorder is not None
    given = {name: as_handed(rank, name) for name in PARTS}
    opened, behind = list[list[float]](), set[int]()
    first, heads = len(recorder.entries), math.prod(given["q"].shape[:-2])

    def attend(q: Tensor, k: Tensor, v: Tensor, diagonal: bool) -> Partial:
        behind.update(id(e) for e in recorder.entries[first:] if e.end is None)
        receives = [e for e in recorder.entries[first:] if e.op == "recv"]
        come = sum(e.num_bytes for e in receives if e.end is not None)
        pairs = math.prod(q.shape[:-1]) * k.shape[-2] / heads
        opened.append([sum(e.end is None for e in receives), come, pairs])
        return _block(q, k, v, diagonal)

    with rank.recording("forward"):
        partial = rank.student.ring_forward(*given.values(), group, attend)
    messages = [e for e in recorder.entries[first:] if e.op in ("send", "recv")]
    rank.fact("beside", [[e.op, e.num_bytes] for e in messages if id(e) not in behind])
    rank.student.ring_forward(*(1.0 - t for t in given.values()), group, _block)
    answer_partial(rank, "ring", partial)
    tell_changed(rank, given)
    rank.fact("open", opened)


def _is_attention(evidence: Whole) -> Iterator[Finding]:
    for answer in evidence.answers:
        out = evidence.own(answer.rank, [out for out, _ in evidence.partials])
        lse = evidence.own(answer.rank, [lse for _, lse in evidence.partials], dim=-1)
        for name, tensor in reported("ring", (out, lse)).items():
            told = f"{name.rpartition('.')[2]} of this rank's queries over the whole sequence"
            yield same(told, tensor, answer, name)
        yield unchanged(evidence, answer)


def _message_bytes(evidence: Evidence, rank: int) -> int:
    numbers = math.prod(evidence.case.params["shape"]) // place_of(evidence.case, rank).size
    return numbers * evidence.inputs["q"].element_size()


def sends(phase: str, messages: Callable[[int], int]) -> Judge:
    """This many messages' worth of bytes are sent to the next rank and received from the one before, and
    nothing else is communicated. messages: (ranks) -> of one tensor of this rank's tokens each.
    """

    def find(evidence: Evidence, answer: RankAnswer) -> Iterator[Finding]:
        place = place_of(evidence.case, answer.rank)
        expected = messages(place.size) * _message_bytes(evidence, answer.rank)
        found = [c for c in answer.collectives.get(phase, []) if c["source"] == "python"]
        after = place.members[(place.position + 1) % place.size]
        for op, peer in (("send", after), ("recv", place.members[place.position - 1])):
            seen = sum(c["num_bytes"] for c in found if c["op"] == op and c["peer"] == peer)
            told = f"{phase}: {op} of {expected:,} bytes in all, rank {peer} at the other end"
            yield Finding(seen == expected, told, f"{seen:,} bytes", answer.rank)
        other = sorted({op for op, _ in calls_of(answer, phase)} - {"send", "recv"})
        yield Finding(not other, f"{phase}: messages between neighbours alone", ", ".join(other), answer.rank)

    return lambda evidence: (f for answer in evidence.answers for f in find(evidence, answer))


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
    of_a_rank = 2 * _message_bytes(evidence, answer.rank)
    done = early = 0.0
    for _, come, pairs in answer.facts["open"]:
        early = max(early, come / of_a_rank - done / of_two_blocks)
        done += pairs
    told = "keys and values of another rank come at most a step before their blocks are computed"
    return Finding(early <= 1 + 1e-6, told, f"those of {early:g} ranks waited", answer.rank)


FORWARD = Run(_go_round, _inputs, _own, Whole)
RING_FORWARD = Exercise(
    "11.ring-forward",
    "Keys and values go round",
    ("ring_forward",),
    dict.fromkeys(("values", "subgroup", "alone"), FORWARD),
    _cases,
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
            {"values": every(sends("forward", lambda n: 2 * (n - 1)), on_each(lambda _, a: all_awaited(a)))},
        ),
        Property(
            "blocks",
            "mechanism",
            1,
            "2n + 1 blocks are computed on every rank, by the attend that was handed in.",
            "pairs of halves in the future are computed too",
            {"values": on_each(_work)},
        ),
        Property(
            "overlap",
            "mechanism",
            2,
            "The next keys are on their way while attend computes blocks.",
            "messages are started before the blocks, and waited for after them",
            {"values": every(*map(on_each, (_open_meanwhile, _all_behind, _step_by_step)))},
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


# -- with a backward


def _cases_with_backward(seed: int) -> list[Case]:
    """What is kept is counted in the process, where small tensors do not show beside its own objects."""
    return [*_cases(seed), ring_case("what is kept", "kept", 2, [1, 2, 512, 8], seed)]


def _trained(case: Case) -> list[str]:
    """What of q, k and v needs a gradient: adapters of queries and values alone leave keys as they are."""
    return [name for name in PARTS if name not in case.params.get("frozen", ())]


def _differentiate(rank: Rank) -> None:
    """Answers out, out.later, when backward is over, grad.q, .k, .v, of a second backward of the same graph,
    and early.q, .k, .v: what half the first one's, of twice the gradient, are by then; recordings forward and
    backward, the second; facts kept_bytes, from the input's, and changed. Between forward and backward there
    is another forward, as there is in a model of two layers.
    """
    group, trained = enter_group(rank), _trained(rank.case)
    leaves = [as_handed(rank, name).requires_grad_(name in trained) for name in PARTS]
    before = storages()
    with rank.recording("forward"):
        out = rank.student.RingAttention.apply(*leaves, group)
    rank.fact("kept_bytes", held_since(before))
    rank.student.RingAttention.apply(*(1.0 - leaf for leaf in leaves), group)
    rank.answer("out", out)
    grad = as_handed(rank, "grad")
    with rank.attempt("gradients"):
        needed = [leaf for leaf in leaves if leaf.requires_grad]
        early = torch.autograd.grad(out, needed, 2.0 * grad, retain_graph=True, allow_unused=True)
        with rank.recording("backward"):
            out.backward(grad)
        for name, gradient in zip(trained, early, strict=True):
            rank.answer(f"early.{name}", None if gradient is None else gradient / 2.0)
    rank.answer("out.later", out)
    given = {name: leaf.detach() for name, leaf in zip(PARTS, leaves, strict=True)}
    tell_changed(rank, {**given, "grad": grad})
    for name, leaf in zip(PARTS, leaves, strict=True):
        rank.answer(f"grad.{name}", leaf.grad)


def _keep(rank: Rank) -> None:
    """Facts kept_bytes: what one forward leaves behind with its output, whoever holds it, as arrays too;
    circle: whether an output that nobody has any more is still there.
    """
    leaves = [as_handed(rank, name).requires_grad_() for name in PARTS]
    rank.fact("kept_bytes", bytes_kept(lambda: lambda: rank.student.RingAttention.apply(*leaves, rank.group)))
    gc.disable()  # Python's search for circles would find it some time
    dropped = weakref.ref(rank.student.RingAttention.apply(*leaves, rank.group))
    rank.fact("circle", dropped() is not None)
    gc.enable()


def _is_output(evidence: Whole, answer: RankAnswer) -> Finding:
    out = evidence.own(answer.rank, [out for out, _ in evidence.partials])
    return same("output of this rank's queries over the whole sequence", out, answer, "out")


def _are_gradients(evidence: Whole) -> Iterator[Finding]:
    for answer in evidence.answers:
        for name in _trained(evidence.case):
            expected = evidence.own(answer.rank, [found[name] for found in evidence.gradients])
            told = f"gradient of {name} from the whole sequence"
            yield same(told, expected, answer, f"grad.{name}")
            yield same(f"{told}, still there after another backward", expected, answer, f"early.{name}")
        yield unchanged(evidence, answer)
        yield same("the output as forward gave it", answer.tensors["out"], answer, "out.later")


def _keeps_its_own(evidence: Evidence, answer: RankAnswer) -> Finding:
    """The output and the lse beside q, k and v, which the caller has."""
    own = _message_bytes(evidence, answer.rank)
    lse = own // evidence.case.params["shape"][-1]
    objects = OBJECT_BYTES if evidence.case.kind == "kept" else 256
    most, kept = own + lse + objects, answer.facts["kept_bytes"]
    told = f"at most {most:,} bytes kept: the output and its lse"
    return Finding(kept <= most, told, f"{kept:,} bytes", answer.rank)


def _goes_with_its_output(evidence: Evidence, answer: RankAnswer) -> Finding:
    told = "an output that nobody has any more is gone, and what was kept with it"
    return Finding(not answer.facts["circle"], told, "its own graph holds it", answer.rank)


ATTENTION = Run(_differentiate, _inputs, _own, Whole)
RING_ATTENTION = Exercise(
    "11.ring-attention",
    "The ring, with its backward",
    ("RingAttention",),
    {**dict.fromkeys(("values", "subgroup", "alone"), ATTENTION), "kept": Run(_keep, _inputs, _own, Whole)},
    _cases_with_backward,
    (
        Property(
            "output",
            "numbers",
            1,
            "The output is that of the whole sequence.",
            "",
            {"values": on_each(_is_output)},
        ),
        Property(
            "gradients",
            "numbers",
            4,
            "The gradients of q, k and v are those of the whole sequence.",
            "sums of dk and dv must come home to the rank of their keys: one step more than the keys go",
            {"values": _are_gradients},
        ),
        Property(
            "messages",
            "mechanism",
            2,
            "Backward sends 4n - 2 tensors: keys and values n - 1 steps, their gradients n.",
            "the keys of the last step need not go on",
            {
                "values": every(
                    sends("forward", lambda n: 2 * (n - 1)),
                    sends("backward", lambda n: 4 * n - 2),
                    on_each(lambda _, answer: all_awaited(answer)),
                )
            },
        ),
        Property(
            "kept",
            "mechanism",
            2,
            "Beside q, k and v the output and its lse are kept for backward, nothing else in any form, and no"
            " longer than the output is there.",
            "autograd keeps what every block was made from: write the backward yourself",
            {
                "values": on_each(_keeps_its_own),
                "kept": every(on_each(_keeps_its_own), on_each(_goes_with_its_output)),
            },
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, on one rank alone, on views of tensors, and where"
            " not all of q, k and v need a gradient.",
            "a rank of the group was used as a global rank, or sums of values stay where keys need none",
            {"subgroup": every(_are_gradients, stays_in_group), "alone": _are_gradients},
        ),
    ),
    builds_on=("11.merge-partials", "11.block-backward", "11.own-tokens", "11.ring-forward"),
    forbids=TORCHS_OWN,
)
