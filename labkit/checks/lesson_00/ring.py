"""What a ring all-reduce must show: sums in place, from messages between neighbours, for any tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.lesson_00.messages import arrived, counted, equal, one_neighbour, only_messages, within
from labkit.checks.old_form import Exercise, Finding, mechanism, numbers, robustness
from labkit.checks.rank import Rank
from labkit.checks.shared.places import enter_group, place_of

TRAFFIC = ("one-neighbour", "messages")

PROPERTIES = (
    numbers(
        "sum-values",
        3,
        "After the call, x itself holds the sum over all ranks, on every rank",
        "the sum went to a new tensor instead of into x, or the second half (passing the finished parts on) "
        "is missing, or starts from the wrong part",
    ),
    mechanism(
        "one-neighbour",
        1,
        "Each rank sends to one neighbour only and receives from the other",
        "parts are sent to whoever needs them, or to rank 0, instead of once around the ring",
    ),
    mechanism(
        "messages",
        2,
        "Each rank sends 2(n-1) messages of about S/n bytes",
        "the whole tensor is sent at every step instead of one of its n parts, or there are n steps a half "
        "instead of n-1",
    ),
    robustness(
        "any-world-size",
        1,
        "It works on 1, 2, 3, ... ranks",
        "a part's number was not taken modulo n, the number of ranks is assumed even, or a lone "
        "rank sends to itself",
    ),
    robustness(
        "uneven-sizes",
        2,
        "It works when n does not divide the size: smaller than n, one number, and none at all",
        "the remainder of S/n is left out, or the parts' sizes differ between ranks",
    ),
    robustness(
        "any-dtype",
        1,
        "It adds in the tensor's own dtype: integers exactly, float64 as float64",
        "the receive buffer has the default dtype (float32) instead of x's",
    ),
    robustness(
        "any-layout",
        1,
        "It works on a view that is not contiguous, and touches nothing outside it",
        "reshape and contiguous copy such a tensor, so the sum lands in the copy: copy it back into x",
    ),
    robustness(
        "large-tensors",
        1,
        "It does not deadlock, however large the messages",
        "every rank waits in send before any rank receives: start the send with isend",
    ),
    robustness(
        "subgroup",
        1,
        "It works in a group that is not all ranks",
        "a rank of the group was used as a global rank: say group_dst and group_src, and pass group",
    ),
)


def exercise() -> Exercise:
    """The exercise `00.ring-all-reduce`."""
    return Exercise(
        "00.ring-all-reduce",
        "Ring all-reduce",
        ("ring_all_reduce",),
        PROPERTIES,
        _cases,
        _inputs,
        _on_rank,
        _judge,
        forbids=tuple(f"torch.distributed.{name}" for name in FORBIDDEN),
    )


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


def ring_case(ranks: int, shape: list[int], *properties: str, seed: int, **params: Any) -> Case:
    """A case for the ring. Its first property is about values; "messages" and "one-neighbour" may follow.

    params: dtype ("float64"), layout ("rows" or "transposed": x is that view of a tensor of `shape`), groups.
    """
    size = "x".join(map(str, shape)) or "one number"
    name = " ".join(
        [size, *(str(params[key]) for key in ("dtype", "layout") if key in params), properties[0]]
    )
    return Case(name, ranks, {"shape": shape, **params}, seed, properties)


def _cases(seed: int) -> list[Case]:
    def case(ranks: int, shape: list[int], *properties: str, **params: Any) -> Case:
        return ring_case(ranks, shape, *properties, seed=seed, **params)

    return [
        case(4, [25, 48], "sum-values", *TRAFFIC),
        case(4, [8], "subgroup", groups=[[0, 2], [1, 3]]),
        case(4, [7], "uneven-sizes"),
        case(4, [3], "uneven-sizes"),
        case(3, [2, 5], "uneven-sizes"),
        case(3, [], "uneven-sizes"),
        case(3, [0], "uneven-sizes"),
        case(3, [6, 2], "any-world-size"),
        case(3, [900_000], "large-tensors", dtype="float32"),
        case(2, [10], "any-world-size"),
        case(2, [6], "any-dtype", dtype="int64"),
        case(2, [6], "any-dtype", dtype="uint8"),
        case(2, [6], "any-dtype", dtype="bfloat16"),
        case(2, [4, 6], "any-layout", layout="transposed"),
        case(2, [8, 3], "any-layout", layout="rows"),
        case(1, [5], "any-world-size"),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """A tensor for each rank: [ranks, *shape]. Integers are drawn so large that no float type holds them."""
    shape = (case.ranks, *case.params["shape"])
    dtype = _dtype(case)
    if dtype.is_floating_point:
        return {"x": torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)}
    largest = torch.iinfo(dtype).max // case.ranks
    return {"x": torch.randint(largest // 2, largest, shape, generator=generator, dtype=dtype)}


def _handed(case: Case, inputs: Inputs, rank: int) -> tuple[Tensor, Tensor]:
    """What one rank is handed: x, and the tensor whose memory x lies in."""
    home = inputs["x"][rank].clone()
    match case.params.get("layout"):
        case "transposed":
            return home.t(), home
        case "rows":
            return home[::2], home
    return home, home


def _on_rank(rank: Rank) -> None:
    group = enter_group(rank)
    x, home = _handed(rank.case, rank.inputs, rank.rank)
    with rank.recording("all-reduce"):
        returned = rank.student.ring_all_reduce(x, group)
    rank.answer("x", x)
    if home is not x:
        rank.answer("home", home)
    rank.fact("returned a tensor", isinstance(returned, Tensor) and returned is not x)


def _judge(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    about = case.properties[0]
    for answer in answers:
        place = place_of(case, answer.rank)
        yield _value(about, case, inputs, answer)
        yield only_messages(about, answer)
        yield within(about, answer, place.members)
        if place.size > 1:
            yield arrived(about, answer, _handed(case, inputs, answer.rank)[0].nbytes)
        if "messages" in case.properties:
            yield from _traffic(case, inputs, answer)


def _value(about: str, case: Case, inputs: Inputs, answer: RankAnswer) -> Finding:
    """x holds the sum of the group's tensors, and what lies between x's elements is untouched."""
    members = place_of(case, answer.rank).members
    total, home = _handed(case, inputs, answer.rank)
    for other in members:
        if other != answer.rank:
            total += _handed(case, inputs, other)[0]
    finding = equal(about, f"x is the sum over ranks {members}", total, answer, "x")
    if finding.passed and home is not total:
        return equal(about, "what surrounds x in memory is unchanged", home, answer, "home")
    if answer.facts["returned a tensor"]:
        seen = f"{finding.seen}; a tensor was returned: the sum belongs in x"
        return Finding(about, False, finding.expected, seen, answer.rank)
    return finding


def _traffic(case: Case, inputs: Inputs, answer: RankAnswer) -> Iterator[Finding]:
    place, x = place_of(case, answer.rank), inputs["x"][0]
    largest = (math.ceil(x.numel() / place.size) + place.size) * x.element_size()
    yield from one_neighbour("one-neighbour", answer, place)
    for op in ("send", "recv"):
        yield from counted("messages", answer, op, 2 * (place.size - 1), largest)


def _dtype(case: Case) -> torch.dtype:
    return getattr(torch, case.params.get("dtype", "float64"))
