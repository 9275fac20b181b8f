"""What merging two partial attentions must show."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_11.partial import (
    Partial,
    answer_partial,
    as_views,
    queries_keys_values,
    reported,
    tell_changed,
    unchanged,
    whole_attention,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.again import others
from labkit.checks.shared.beside import on_each, same
from labkit.checks.shared.split import dtype_of


def merge_case(name: str, kind: str, shape: list[int], first: int, seed: int, **params: object) -> Case:
    """shape: [..., s, d]. first: keys of the first part; the second has the rest. views: what is given does
    not lie together in memory. scale: of the scores. below: how far all scores are below those drawn. behind:
    how far those of the second part are, in each row. blind: the keys that the first rows do not see where
    the kind is "empty": of both parts, of one or of the other; it is the next rows in the next head.
    queries: as many, default s, which is how many keys there are. zeros: the part whose values, and so its
    output, are zeros, of keys that are seen. level: the part whose lse is exactly 0, in every row.
    """
    return Case(name, 1, {"shape": shape, "first": first, **params}, seed, kind=kind)


def _cases(seed: int) -> list[Case]:
    return [
        merge_case("two halves", "values", [2, 3, 8, 4], 4, seed),
        merge_case("one key and the rest", "values", [2, 5, 3], 1, seed, dtype="float32"),
        merge_case("views", "values", [2, 4, 3], 2, seed, views=True),
        merge_case("scores of hundreds", "large", [1, 2, 6, 4], 3, seed, scale=400.0),
        merge_case("hundreds apart, float32", "large", [2, 3, 6, 4], 3, seed, scale=400.0, dtype="float32"),
        merge_case("scores of minus hundreds", "large", [1, 2, 5, 3], 2, seed, below=900.0),
        merge_case("one head, alone", "values", [5, 3], 2, seed),
        merge_case("one query, one number", "values", [2, 3, 5, 1], 2, seed, queries=1),
        merge_case("rows that saw nothing", "empty", [1, 2, 6, 4], 3, seed),
        merge_case("a part that nobody saw", "empty", [1, 2, 5, 3], 2, seed, blind=5 * ["one"]),
        merge_case("two parts that nobody saw", "empty", [1, 2, 4, 3], 2, seed, blind=4 * ["both"]),
        merge_case(
            "a part far behind", "values", [2, 6, 3], 3, seed, behind=[6.0, -10.0, 14.0, -16.0, 17.0, 19.0]
        ),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """Two partials over different keys, and which keys each query sees in them."""
    drawn = {name: t.double() for name, t in queries_keys_values(case, generator).items()}
    s, first = case.params["shape"][-2], case.params["first"]
    q, k = drawn["q"][..., : case.params.get("queries", s), :], drawn["k"]
    visible = torch.ones(*q.shape[:-1], s, dtype=torch.bool)
    if case.kind == "empty":
        keys_of = {"both": slice(None), "one": slice(first), "other": slice(first, None)}
        for row, part in enumerate(case.params.get("blind", keys_of)):
            visible[..., row, keys_of[part]] = False
        for number, in_head in enumerate(visible.view(-1, *visible.shape[-2:])):
            in_head.copy_(in_head.roll(number, 0))
    if "behind" in case.params:  # a feature of its own, which the queries of a row share
        d = case.params["shape"][-1]
        q[..., -1], k[..., -1] = -(d**0.5) * torch.tensor(case.params["behind"], dtype=q.dtype), 0.0
        k[..., first:, -1] = 1.0
    halves = {"one": slice(0, first), "other": slice(first, None)}
    if "zeros" in case.params:
        drawn["v"][..., halves[case.params["zeros"]], :] = 0.0
    parts: Inputs = {}
    for name, keys in halves.items():
        partial = whole_attention(q, k[..., keys, :], drawn["v"][..., keys, :], visible[..., keys])
        parts |= {f"{name}.out": partial[0], f"{name}.lse": partial[1]}
    whole = whole_attention(q, k, drawn["v"], visible)
    found = {**parts, "whole.out": whole[0], "whole.lse": whole[1]}
    level = found[f"{case.params['level']}.lse"].clone() if "level" in case.params else 0.0
    for name in ("one", "other", "whole"):  # all scores of a row less by as much: so is its lse, and no more
        found[f"{name}.lse"] -= case.params.get("below", 0.0) + level
    return {name: t.to(dtype_of(case)) for name, t in found.items()}


def _handed(case: Case, inputs: Inputs, rank: int) -> Inputs:
    return {name: tensor for name, tensor in inputs.items() if not name.startswith("whole")}


def _merge(rank: Rank) -> None:
    """Answers merged.out, .lse and .empty, and the same of the parts the other way round as swapped, both
    read when both calls are over: a call that changes what it gave before is seen. Each call is given parts
    of its own, so that one that overwrites them costs no more than that. Fact changed.
    """
    given, again = _parts(rank), _parts(rank)
    rank.student.merge(*others(*_of("one", given), *_of("other", given)))
    merged = rank.student.merge(*_of("one", given), *_of("other", given))
    swapped = rank.student.merge(*_of("other", again), *_of("one", again))
    tell_changed(rank, given)
    answer_partial(rank, "merged", merged)
    answer_partial(rank, "swapped", swapped)


def _parts(rank: Rank) -> Inputs:
    """Copies of the two partials, as views where the case says so."""
    views = rank.params.get("views", False)
    return as_views(rank.inputs) if views else {name: t.clone() for name, t in rank.inputs.items()}


def _of(name: str, given: Inputs) -> Partial:
    return given[f"{name}.out"], given[f"{name}.lse"]


def _is_the_whole(evidence: Evidence) -> Iterator[Finding]:
    whole: Partial = evidence.inputs["whole.out"], evidence.inputs["whole.lse"]
    for answer in evidence.answers:
        yield from _equal(whole, answer)


def _equal(whole: Partial, answer: RankAnswer) -> Iterator[Finding]:
    told = {"out": "out over all keys", "lse": "lse over all keys", "empty": "-inf where no key was seen"}
    for name in ("merged", "swapped"):
        for what, tensor in reported(name, whole).items():
            part = what.rpartition(".")[2]
            yield same(
                f"{told[part]} (0 stands for -inf)" if part == "lse" else told[part], tensor, answer, what
            )


RUN = Run(_merge, _inputs, _handed)
EXERCISE = Exercise(
    "11.merge-partials",
    "Two partial attentions made one",
    ("merge",),
    {"values": RUN, "large": RUN, "empty": RUN},
    _cases,
    (
        Property(
            "values",
            "numbers",
            3,
            "Merged, two parts of the keys give what all keys give, in any order, and stay as they were.",
            "outputs are weighted by exp(lse - merged lse), not by numbers of keys",
            {"values": every(_is_the_whole, on_each(unchanged))},
            {"large": on_each(unchanged), "empty": on_each(unchanged)},
        ),
        Property(
            "large",
            "robustness",
            2,
            "Scores of several hundreds neither overflow nor vanish.",
            "exp(lse) is taken before the larger one is subtracted: exp(800) is inf",
            {"large": _is_the_whole},
        ),
        Property(
            "empty",
            "robustness",
            2,
            "A part in which a query saw no key, with lse -inf, changes nothing; two such give 0 and -inf.",
            "-inf minus -inf is nan",
            {"empty": _is_the_whole},
        ),
    ),
)
