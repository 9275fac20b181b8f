"""What `03.assign-buckets` must show: buckets filled from the last parameter to the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from labkit.checks.case import Case
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run
from labkit.checks.lesson_03.net import TORCHS_OWN
from labkit.checks.rank import Rank

Spec = tuple[list[int], str, bool]
"""Of a parameter: shape, dtype, requires_grad."""
LISTS = "a list of lists"
BUCKETS_ID = "03.assign-buckets"


def buckets_case(
    name: str, parameters: list[Spec], bucket_bytes: int, seed: int, behind: int = 1, kind: str = "values"
) -> Case:
    """Parameters that go into buckets of so many bytes. behind: so many times a parameter's memory is behind
    it, which is a view with gaps where that is more than once. They are handed over in a list, or in a tuple
    where the kind is "tuple"; of kind "many" there are more than functions can call themselves for.
    """
    specs = [[list(shape), dtype, asks] for shape, dtype, asks in parameters]
    params = {"parameters": specs, "bucket_bytes": bucket_bytes, "behind": behind}
    return Case(name, 1, params, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    d, f = "float64", "float32"
    plain: list[Spec] = [
        ([4, 3], d, True),
        ([4], d, True),
        ([5, 4], d, True),
        ([5], d, True),
        ([2, 5], d, True),
    ]
    large: list[Spec] = [([1], f, True), ([100], f, True), ([2], f, True)]
    frozen: list[Spec] = [([4], d, True), ([4], f, False), ([4], d, True), ([4], d, False)]
    empty: list[Spec] = [([3], f, True), ([0], f, True), ([4], f, True), ([9], f, True), ([0], f, True)]
    mixed: list[Spec] = [([4], f, True), ([4], d, True), ([4], d, True), ([4], f, True)]
    halves: list[Spec] = [([4], "float16", True), ([4], "bfloat16", True), ([3], "bfloat16", True)]
    return [
        buckets_case("five parameters", plain, 240, seed),
        buckets_case("one larger than a bucket", large, 64, seed),
        buckets_case("some frozen", frozen, 64, seed),
        buckets_case("two dtypes", mixed, 1000, seed),
        buckets_case("two dtypes of two bytes", halves, 1000, seed),
        buckets_case("two dtypes, full buckets", [([4], f, True), *[([4], d, True)] * 4], 64, seed),
        buckets_case("two without elements", empty, 16, seed),
        buckets_case("scalars, which have no dimension", [([], f, True)] * 5, 8, seed),
        buckets_case("two that exceed a bucket by a byte", [([8], f, True)] * 4, 63, seed),
        buckets_case("views of more memory", [([4], f, True)] * 5, 32, seed, behind=3),
        buckets_case("none", [], 64, seed),
        buckets_case("in a tuple", frozen, 64, seed, kind="tuple"),
        buckets_case("1206 parameters", [*plain, *frozen] * 134, 240, seed, kind="many"),
    ]


def _parameters(case: Case) -> list[nn.Parameter]:
    """Each with numbers of its own, and with a gradient where it asks for one."""
    behind, found = case.params["behind"], []
    for number, (shape, dtype, asks) in enumerate(case.params["parameters"], start=1):
        memory = torch.full((*shape, behind), number % 100, dtype=getattr(torch, dtype))
        found.append(nn.Parameter(memory[..., 0], requires_grad=asks))
        if asks:
            found[-1].grad = torch.full_like(found[-1], 2)
    return found


def _ask_for_buckets(rank: Rank) -> None:
    """Facts: buckets; kind, what they came in; kept, whether the list of parameters is as it was; as before,
    whether what is in it is.
    """
    parameters = _parameters(rank.case)
    handed = tuple(parameters) if rank.case.kind == "tuple" else [*parameters]
    answer = rank.student.assign_buckets(handed, rank.params["bucket_bytes"])
    rank.fact("kind", _kind(answer))
    rank.fact("buckets", [[int(i) for i in bucket] for bucket in answer])
    rank.fact("kept", list(map(id, handed)) == list(map(id, parameters)))
    rank.fact("as before", all(map(_alike, parameters, _parameters(rank.case))))


def _kind(buckets: Any) -> str:
    """What came back, in words: `LISTS`, or what stands in their place. A generator comes here as a tuple."""
    kinds = [type(buckets).__name__, *sorted({type(bucket).__name__ for bucket in buckets})]
    return LISTS if set(kinds) == {"list"} else f"a {kinds[0]} of {' and '.join(kinds[1:]) or 'nothing'}"


def _alike(one: nn.Parameter, other: nn.Parameter) -> bool:
    """Whether two parameters have the same numbers, dtype, memory order, flag and gradient."""
    same = one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if one.grad is None or other.grad is None:
        gradients = one.grad is other.grad
    else:
        gradients = torch.equal(one.grad, other.grad)
    return same and gradients and one.requires_grad == other.requires_grad


# -- judges


def _buckets(evidence: Evidence) -> list[list[int]]:
    return evidence.answers[0].facts["buckets"]


def _wanted(parameters: Sequence[nn.Parameter]) -> list[int]:
    """The trainable parameters from the last to the first."""
    return [i for i in reversed(range(len(parameters))) if parameters[i].requires_grad]


def _each_is_in_one(evidence: Evidence) -> Iterator[Finding]:
    seen, wanted = _buckets(evidence), sorted(_wanted(_parameters(evidence.case)))
    told = f"each of {wanted} in one bucket, frozen parameters in none"
    yield Finding(sorted(i for bucket in seen for i in bucket) == wanted, told, f"{seen}")
    kept = evidence.answers[0].facts["kept"]
    yield Finding(kept, "the list of parameters as it was handed over", "in another order, or shorter")
    as_before = evidence.answers[0].facts["as before"]
    told = "parameters with the numbers, dtypes and gradients that they had"
    yield Finding(as_before, told, "they are not as they were")
    kind = evidence.answers[0].facts["kind"]
    yield Finding(kind == LISTS, f"{LISTS}, no generator", kind)


def _last_comes_first(evidence: Evidence) -> Iterator[Finding]:
    flat, wanted = [i for bucket in _buckets(evidence) for i in bucket], _wanted(_parameters(evidence.case))
    yield Finding(flat == wanted, f"in the order {wanted}", f"{flat}")


def _are_filled(evidence: Evidence) -> Iterator[Finding]:
    parameters, most, seen = (
        _parameters(evidence.case),
        evidence.case.params["bucket_bytes"],
        _buckets(evidence),
    )
    sizes = [_bytes(parameters, bucket) for bucket in seen]
    too_large = [size for size, bucket in zip(sizes, seen, strict=True) if len(bucket) > 1 and size > most]
    told = f"at most {most} bytes in a bucket of several"
    yield Finding(not too_large and all(seen), told, f"bytes: {sizes}")
    order = [i for bucket in seen for i in bucket if 0 <= i < len(parameters)]
    filled = [_bytes(parameters, bucket) for bucket in _greedy(parameters, order, most)]
    yield Finding(sizes == filled, f"{len(filled)} buckets, bytes: {filled}", f"{len(seen)}: {sizes}")
    fewest = len(filled_buckets(parameters, most))
    yield Finding(len(seen) == fewest, f"{fewest} buckets", f"{len(seen)}: {sizes}")


def _hold_one_dtype(evidence: Evidence) -> Iterator[Finding]:
    parameters = _parameters(evidence.case)
    mixed = [bucket for bucket in _buckets(evidence) if len({parameters[i].dtype for i in bucket}) > 1]
    yield Finding(not mixed, "one dtype in a bucket", f"mixed: {mixed}")


def _bytes(parameters: Sequence[nn.Parameter], bucket: Sequence[int]) -> int:
    return sum(parameters[i].nbytes for i in bucket if 0 <= i < len(parameters))


def filled_buckets(parameters: Sequence[nn.Parameter], most: int) -> list[list[int]]:
    """Where the parameters of each bucket stand, which is filled as far as it goes, from the last one on."""
    return _greedy(parameters, _wanted(parameters), most)


def _greedy(parameters: Sequence[nn.Parameter], order: Sequence[int], most: int) -> list[list[int]]:
    """Buckets that are each filled, in this order, until the next parameter does not fit, or has another
    dtype.
    """
    buckets: list[list[int]] = []
    held = 0  # bytes in the last bucket
    for i in order:
        fits = buckets and held + parameters[i].nbytes <= most
        if not fits or parameters[buckets[-1][0]].dtype != parameters[i].dtype:
            buckets.append([])
            held = 0
        buckets[-1].append(i)
        held += parameters[i].nbytes
    return buckets


EXERCISE = Exercise(
    BUCKETS_ID,
    "Buckets",
    ("assign_buckets",),
    dict.fromkeys(("values", "tuple", "many"), Run(_ask_for_buckets)),
    _cases,
    (
        Property(
            "every-parameter",
            "numbers",
            1,
            "Every trainable parameter is in exactly one bucket",
            "the last bucket is never added to the list, a frozen parameter is in one, or a tied one in two",
            on=dict.fromkeys(("values", "tuple", "many"), _each_is_in_one),
        ),
        Property(
            "reverse-order",
            "mechanism",
            1,
            "Buckets follow backward: the last parameter comes first",
            "module.parameters() taken as it comes, or only the order within a bucket turned round",
            on={"values": _last_comes_first},
            also={"tuple": _last_comes_first, "many": _last_comes_first},
        ),
        Property(
            "bucket-bytes",
            "mechanism",
            2,
            "Each bucket is filled until the next parameter would exceed the bytes",
            "bytes are numel * element_size; a bucket of one parameter may be larger",
            {"values": _are_filled},
            {"tuple": _are_filled, "many": _are_filled},
        ),
        Property(
            "one-dtype",
            "robustness",
            1,
            "A bucket holds one dtype: its gradients become one flat tensor",
            "a new dtype must open a new bucket, also where the bytes would fit",
            on={"values": _hold_one_dtype},
            also={"tuple": _hold_one_dtype, "many": _hold_one_dtype},
        ),
    ),
    forbids=TORCHS_OWN,
)
