"""What `00.ring-all-reduce` must show: sums in place, from messages between neighbours, for any tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every, own_entry
from labkit.checks.lesson_00.messages import (
    arrived,
    at_most,
    counted,
    each_call,
    in_own_dtype,
    one_neighbour,
    only_messages,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.again import called_before
from labkit.checks.shared.beside import all_awaited, on_each, same, stays_in_group
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.split import dtype_of

FORBIDDEN = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "gather_object",
    "scatter",
    "scatter_object_list",
    "broadcast",
    "broadcast_object_list",
    "send_object_list",
    "recv_object_list",
)


def ring_case(ranks: int, shape: list[int], kind: str, seed: int, **params: Any) -> Case:
    """A case for the ring.

    params: dtype ("float64"), layout ("rows", every other one, or "transposed": x is that view of a tensor of
    `shape`; "mixed": on odd ranks transposed, or images with their channels last, and contiguous on the
    others), groups, late (ranks that come later), after (the dtype of a tensor of as many elements that was
    summed up before), again (x itself was, with other numbers in it), calls (how many came before, of the
    same numbers).
    """
    size = "x".join(map(str, shape)) or "one number"
    named = [str(params[key]) for key in ("dtype", "layout") if key in params]
    return Case(" ".join([size, *named, kind]), ranks, {"shape": shape, **params}, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    def case(ranks: int, shape: list[int], kind: str, **params: Any) -> Case:
        return ring_case(ranks, shape, kind, seed, **params)

    return [
        case(4, [25, 6, 8], "sum-values", again=True),
        case(3, [9], "sum-values", late=[1]),
        case(4, [8], "subgroup", groups=[[0, 2], [1, 3]]),
        case(4, [7], "uneven-sizes"),
        case(4, [3], "uneven-sizes"),
        case(3, [2, 5], "uneven-sizes"),
        case(3, [], "uneven-sizes"),
        case(3, [0], "uneven-sizes"),
        case(3, [6, 2], "any-world-size"),
        case(3, [900_000], "large-tensors", dtype="float32"),
        case(2, [10], "counted", calls=3),
        case(2, [6], "any-dtype", dtype="int64", after="float32"),
        case(2, [6], "any-dtype", dtype="uint8"),
        case(2, [6], "any-dtype", dtype="bfloat16"),
        case(2, [4, 6], "any-layout", layout="transposed"),
        case(2, [8, 3], "any-layout", layout="rows"),
        case(2, [11], "any-layout", layout="rows"),
        case(3, [5, 4], "any-layout", layout="mixed"),
        case(2, [2, 3, 2, 4], "any-layout", layout="mixed"),
        case(1, [5], "any-world-size"),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """A tensor for each rank: [ranks, *shape]. Integers are drawn so large that no float type holds them."""
    shape, dtype = (case.ranks, *case.params["shape"]), dtype_of(case)
    if dtype.is_floating_point:
        return {"x": torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)}
    largest = torch.iinfo(dtype).max // case.ranks
    return {"x": torch.randint(largest // 2, largest, shape, generator=generator, dtype=dtype)}


def _handed(case: Case, drawn: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Of what a rank is handed: x, and the tensor whose memory x lies in."""
    layout = case.params.get("layout", "")
    if layout == "mixed" and rank % 2 == 0:
        home = _turned(drawn).contiguous()
        return home, home
    home = drawn.clone()
    views = {"transposed": home.t, "mixed": lambda: _turned(home), "rows": lambda: home[::2]}
    return views.get(layout, lambda: home)(), home


def _turned(home: Tensor) -> Tensor:
    """A matrix transposed; of more dimensions, the last one as the second: images' channels are last in
    memory.
    """
    return home.t() if home.dim() == 2 else home.movedim(-1, 1)


def _add_up(rank: Rank) -> None:
    """Answers: x; home, where x is a view of it. Fact: returned a tensor. Recordings: all-reduce, of each
    call.
    """
    group = enter_group(rank)
    x, home = _handed(rank.case, rank.inputs["x"], rank.rank)
    if "after" in rank.params:
        rank.student.ring_all_reduce(torch.zeros_like(x, dtype=getattr(torch, rank.params["after"])), group)
    called_before(rank, [x], lambda: _recorded(rank, x, group))
    for _ in range(rank.params.get("calls", 0)):
        _recorded(rank, _handed(rank.case, rank.inputs["x"], rank.rank)[0], group)
    returned = _recorded(rank, x, group)
    rank.answer("x", x)
    if home is not x:
        rank.answer("home", home)
    rank.fact("returned a tensor", isinstance(returned, Tensor) and returned is not x)


def _recorded(rank: Rank, x: Tensor, group: dist.ProcessGroup) -> Any:
    with rank.recording("all-reduce"):
        return rank.student.ring_all_reduce(x, group)


# -- judges


def _sum_in_place(evidence: Evidence, answer: RankAnswer) -> Finding:
    """x holds the sum of the group's tensors, and what lies between x's elements is untouched."""
    case, drawn = evidence.case, evidence.inputs["x"]
    members = place_of(case, answer.rank).members
    total, home = _handed(case, drawn[answer.rank], answer.rank)
    for other in members:
        if other != answer.rank:
            total += _handed(case, drawn[other], other)[0]
    finding = same(f"x is the sum over ranks {members}", total, answer, "x")
    if finding.passed and home is not total:
        return same("what surrounds x in memory is unchanged", home, answer, "home")
    if answer.facts["returned a tensor"]:
        seen = f"{finding.seen}; a tensor was returned: the sum belongs in x"
        return Finding(False, finding.expected, seen, answer.rank)
    return finding


def _only_messages(evidence: Evidence) -> Iterator[Finding]:
    """The sum can only be made of messages, and of as many bytes as it takes."""
    for answer in evidence.answers:
        yield only_messages(answer)
        yield all_awaited(answer)
        if place_of(evidence.case, answer.rank).size > 1:
            x, _ = _handed(evidence.case, evidence.inputs["x"][answer.rank], answer.rank)
            yield arrived(answer, x.nbytes)


def _of_a_part(evidence: Evidence) -> Iterator[Finding]:
    """2(n-1) messages each way, each of a part of x, in its dtype."""
    for answer in evidence.answers:
        x, _ = _handed(evidence.case, evidence.inputs["x"][answer.rank], answer.rank)
        size = place_of(evidence.case, answer.rank).size
        largest = (math.ceil(x.numel() / size) + size) * x.element_size()
        for op in ("send", "recv"):
            yield counted(answer, op, 2 * (size - 1), largest)
        yield in_own_dtype(answer, str(x.dtype).removeprefix("torch."))


def _in_parts(evidence: Evidence, answer: RankAnswer) -> Finding:
    """No more is sent than 2(n-1) parts, or twice x where parts differ by more than an element."""
    x, _ = _handed(evidence.case, evidence.inputs["x"][answer.rank], answer.rank)
    size = place_of(evidence.case, answer.rank).size
    largest = max(2 * x.numel(), 2 * (size - 1) * math.ceil(x.numel() / size))
    return at_most(answer, largest * x.element_size())


_messages_only = each_call("all-reduce", _only_messages)
_parts_of_x = each_call("all-reduce", _of_a_part)
_RIGHT_SUM = every(on_each(_sum_in_place), _messages_only, stays_in_group)
_NEIGHBOURS = each_call(
    "all-reduce", on_each(lambda e, answer: one_neighbour(answer, place_of(e.case, answer.rank)))
)
_NEIGHBOURS_IF_ANY = each_call(
    "all-reduce", on_each(lambda e, answer: one_neighbour(answer, place_of(e.case, answer.rank), True))
)
_IN_A_RING = every(_RIGHT_SUM, _NEIGHBOURS, _parts_of_x)
_RUN = Run(_add_up, _inputs, own_entry)
_KINDS = (
    "sum-values",
    "counted",
    "any-world-size",
    "uneven-sizes",
    "any-dtype",
    "any-layout",
    "large-tensors",
    "subgroup",
)
EXERCISE = Exercise(
    "00.ring-all-reduce",
    "Ring all-reduce",
    ("ring_all_reduce",),
    dict.fromkeys(_KINDS, _RUN),
    _cases,
    (
        Property(
            "sum-values",
            "numbers",
            3,
            "After the call, x itself holds the sum over all ranks, on every rank",
            "the sum went to a new tensor instead of into x, or the second half (passing the finished parts"
            " on) is missing, or starts from the wrong part",
            {"sum-values": _RIGHT_SUM},
        ),
        Property(
            "one-neighbour",
            "mechanism",
            4,
            "Each rank sends to one neighbour only and receives from the other",
            "parts are sent to whoever needs them, or to rank 0, instead of once around the ring",
            {"sum-values": _NEIGHBOURS, "counted": _NEIGHBOURS},
            {
                "uneven-sizes": _NEIGHBOURS_IF_ANY,
                "any-dtype": _NEIGHBOURS,
                "any-world-size": _NEIGHBOURS_IF_ANY,
            },
        ),
        Property(
            "messages",
            "mechanism",
            6,
            "Each rank sends 2(n-1) messages of about S/n bytes",
            "the whole tensor is sent at every step instead of one of its n parts, or there are n steps a"
            " half instead of n-1",
            {"sum-values": _parts_of_x, "counted": _parts_of_x},
            {"any-world-size": _parts_of_x},
        ),
        Property(
            "any-world-size",
            "robustness",
            1,
            "It works on 1, 2, 3, ... ranks",
            "a part's number was not taken modulo n, the number of ranks is assumed even, or a lone "
            "rank sends to itself",
            {"any-world-size": _RIGHT_SUM, "counted": _RIGHT_SUM},
        ),
        Property(
            "uneven-sizes",
            "robustness",
            2,
            "It works when n does not divide the size: smaller than n, one number, and none at all",
            "the remainder of S/n is left out, the parts' sizes differ between ranks, or small tensors go"
            " whole",
            {"uneven-sizes": every(_RIGHT_SUM, each_call("all-reduce", on_each(_in_parts)))},
        ),
        Property(
            "any-dtype",
            "robustness",
            1,
            "It adds and sends in the tensor's own dtype: integers exactly, float64 as float64",
            "the receive buffer has the default dtype (float32) instead of x's",
            {"any-dtype": every(_RIGHT_SUM, _parts_of_x)},
        ),
        Property(
            "any-layout",
            "robustness",
            1,
            "It works on a view that is not contiguous, and touches nothing outside it",
            "reshape and contiguous copy such a tensor, so the sum lands in the copy: copy it back into x",
            {"any-layout": _IN_A_RING},
        ),
        Property(
            "large-tensors",
            "robustness",
            1,
            "It does not deadlock, however large the messages",
            "every rank waits in send before any rank receives: start the send with isend",
            {"large-tensors": _IN_A_RING},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not all ranks",
            "a rank of the group was used as a global rank: say group_dst and group_src, and pass group",
            {"subgroup": _IN_A_RING},
        ),
    ),
    forbids=tuple(f"torch.distributed.{name}" for name in FORBIDDEN),
)
