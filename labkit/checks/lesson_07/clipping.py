"""What `07.clip-grad-norm` must show: one norm for a model of which some parameters are cut, some whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every
from labkit.checks.lesson_07.modules import PAIRS, any_layout, case_maker, subgroup
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import on_each, same, stays_in_group
from labkit.checks.shared.clipping import clipped_difference, sends_one_number
from labkit.checks.shared.places import Place, enter_group, groups_of, place_of
from labkit.checks.shared.split import drawn, dtype_of

CLIP_ID = "07.clip-grad-norm"
CUT = {"first": (8, 3), "second": (4, 5)}
WHOLE: dict[str, tuple[int, ...]] = {"norm": (7,), "positions": (3, 4), "temperature": ()}
LATER = 3  # calls after the first, as in the steps of training
WIDE = 1e5  # times what is drawn: in float16 infinite
clip_case = case_maker(max_norm=2.0)


def _cases(seed: int) -> list[Case]:
    return [
        clip_case("two ranks", "values", 2, seed, late=[0]),
        clip_case("a bound of 0", "values", 2, seed, max_norm=0.0),
        clip_case("a small norm", "small", 2, seed, scale=0.01),
        clip_case("a norm below the bound, its square above", "small", 2, seed, scale=0.2),
        clip_case("nothing but zeros", "small", 2, seed, scale=0.0),
        clip_case("nothing but zeros, and a bound of 0", "small", 2, seed, scale=0.0, max_norm=0.0),
        clip_case("gradients that are views", "layout", 2, seed),
        clip_case("without gradient", "missing", 2, seed),
        clip_case("nothing cut", "none-cut", 2, seed),
        clip_case("nothing whole", "none-whole", 2, seed),
        clip_case("one rank without any gradient", "none-whole", 2, seed, lacking=True),
        clip_case("bfloat16", "low", 2, seed, dtype="bfloat16"),
        clip_case(
            "several types", "low", 2, seed, dtype="float16", wide=["second", "positions"], max_norm=2e5
        ),
        clip_case("four ranks", "values", 4, seed, max_norm=0.5),
        clip_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
    ]


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """The gradients of the whole model for each group; the norm of the whole ones is a large part. Those that
    the case names as wide are float32, and too large for float16.
    """
    scale, groups = case.params.get("scale", 1.0), len(groups_of(case))
    found = {n: scale * drawn(case, generator, groups, *shape) for n, shape in (CUT | WHOLE).items()}
    if "above" in case.params:  # the norm, over the bound
        norm = torch.stack([gradient.double().square().sum() for gradient in found.values()]).sum().sqrt()
        found = {n: case.params["above"] * case.params["max_norm"] / norm * g for n, g in found.items()}
    return found | {name: WIDE * found[name].float() for name in case.params.get("wide", [])}


def _hand(case: Case, inputs: Inputs, rank: int) -> Inputs:
    """The gradients that a rank has: its blocks of the cut ones."""
    place = place_of(case, rank)
    return {n: place.block(t[place.index], 0 if n in CUT else None) for n, t in inputs.items()}


def _lacking(case: Case, place: Place) -> tuple[str, ...]:
    """The parameters of which a rank has no gradient: the last rank's blocks, in a case "missing" and where
    the case says so.
    """
    lacking = case.kind == "missing" or case.params.get("lacking", False)
    return tuple(CUT) if lacking and place.position == place.size - 1 else ()


def _clip(
    rank: Rank,
    names: tuple[str, ...] = (*CUT, *WHOLE),
    bare: int = 0,
    view: Callable[[Tensor], Tensor] = torch.clone,
    frozen: tuple[str, ...] = (),
) -> None:
    """Clip what this rank has. Answers: norm, grad.NAME; kept norm, the same norm after another call, in a
    case "values". Fact: made, how many of the parameters that had none have a gradient now, and lists, which
    of the two were not what they were. Recordings: all, of each call.

    names: of the parameters that are handed over. bare: parameters without gradient beside them. view: copies
    gradients, perhaps in another layout. frozen: those that have a gradient and ask for none.
    """
    group, parameters = enter_group(rank), {}
    lacking = _lacking(rank.case, place_of(rank.case, rank.rank))
    for name, gradient in rank.inputs.items():
        parameters[name] = nn.Parameter(torch.zeros_like(gradient))
        if name not in lacking:
            parameters[name].grad = view(gradient)
        parameters[name].requires_grad_(name not in frozen)

    def those(kind: Mapping[str, tuple[int, ...]]) -> list[nn.Parameter]:
        zeros = torch.zeros(5, dtype=dtype_of(rank.case), device=rank.device)
        there = [parameters[name] for name in kind if name in names]
        return there + [nn.Parameter(zeros.clone()) for _ in range(bare)]

    cut, whole = those(CUT), those(WHOLE)
    before = {"cut": list(map(id, cut)), "whole": list(map(id, whole))}
    with rank.recording("all"):
        norm = rank.student.clip_grad_norm(cut, whole, rank.params["max_norm"], group)
    after = {"cut": list(map(id, cut)), "whole": list(map(id, whole))}
    rank.fact("lists", [name for name in before if after[name] != before[name]])
    rank.answer("norm", torch.as_tensor(norm).double().reshape(()))
    given = [id(parameter) for parameter in parameters.values()]
    rank.fact("made", sum(p.grad is not None for p in (*cut, *whole) if id(p) not in given))
    for name, parameter in parameters.items():
        rank.answer(f"grad.{name}", parameter.grad)
    if rank.case.kind == "values":
        for _ in range(LATER):
            with rank.recording("all"):
                rank.student.clip_grad_norm(cut, whole, rank.params["max_norm"], group)
        rank.answer("kept norm", torch.as_tensor(norm).double().reshape(()))


# -- judges


@dataclass(frozen=True)
class ClipEvidence(Evidence):
    """Answers, to be held against the norm of the whole model's gradient, each number counted once."""

    names: tuple[str, ...] = (*CUT, *WHOLE)  # of the parameters that are there

    def norm(self, answer: RankAnswer) -> Tensor:
        """The norm that a rank's group was to find."""
        group = groups_of(self.case)[place_of(self.case, answer.rank).index]
        squares = [
            place.block(self.inputs[name][place.index], 0 if name in CUT else None).double().square().sum()
            for place in (place_of(self.case, rank) for rank in group)
            for name in self.names
            if name not in _lacking(self.case, place) and (name in CUT or place.position == 0)
        ]
        return torch.stack(squares).sum().sqrt()


def _right_norm(evidence: ClipEvidence, answer: RankAnswer) -> Finding:
    norm, seen = evidence.norm(answer), answer.tensors.get("norm", torch.tensor(torch.nan))
    close = torch.allclose(norm, seen, rtol=1e-4 if evidence.case.params.get("dtype") else 1e-5)
    told = f"norm {norm.item():.6g}, of all numbers of the whole model once"
    return Finding(close, told, f"{seen.item():.6g}", answer.rank)


def _norm_kept(evidence: ClipEvidence) -> Iterator[Finding]:
    """What a call gave keeps its value in the next, which clips what the first one left."""
    for answer in evidence.answers:
        if "norm" in answer.tensors:
            told = "the norm that a call gave, after another call"
            yield same(told, answer.tensors["norm"], answer, "kept norm")


def _sends_one_number(evidence: ClipEvidence) -> Iterator[Finding]:
    """One all-reduce of one number, in each call. A group of one may communicate or not."""
    for answer in evidence.answers:
        if place_of(evidence.case, answer.rank).size > 1:
            for each in (*answer.earlier("all"), "all"):
                yield sends_one_number(evidence, answer, each)


def _scaled(evidence: ClipEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        most, norm = evidence.case.params["max_norm"], evidence.norm(answer).item()
        factor = most / norm if norm > most else 1.0
        for name, gradient in _hand(evidence.case, evidence.inputs, answer.rank).items():
            seen, there = answer.tensors.get(f"grad.{name}"), name in evidence.names
            if name in _lacking(evidence.case, place_of(evidence.case, answer.rank)):
                yield Finding(seen is None, f"no gradient of {name}, as before", "one", answer.rank)
                continue
            expected = (gradient.double() * factor).to(gradient.dtype) if there else gradient
            wrong = clipped_difference(expected, seen)
            if seen is not None and seen.dtype != gradient.dtype:
                wrong = f"{seen.dtype}"
            told = f"gradient of {name}, {gradient.dtype}, times {factor:.4g}"
            yield Finding(wrong is None, told, wrong or "", answer.rank)
        made = answer.facts["made"]
        yield Finding(not made, "no gradient where there was none", f"{made} made", answer.rank)


def _lists_kept(evidence: ClipEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        changed = " and ".join(answer.facts["lists"])
        yield Finding(not changed, "the lists as they were handed over", f"another {changed}", answer.rank)


_NORM_AND_GRADIENTS = every(on_each(_right_norm), _scaled)
_CLIPPED = Run(_clip, _inputs, _hand, ClipEvidence)


def _columns_first(gradient: Tensor) -> Tensor:
    """The same numbers, in memory of another order."""
    return gradient.movedim(0, -1).contiguous().movedim(-1, 0)


def _clipping_only(kind: Mapping[str, tuple[int, ...]]) -> Run:
    """The run in which parameters of one kind alone are handed over."""
    names = tuple(kind)
    return Run(partial(_clip, names=names), _inputs, _hand, partial(ClipEvidence, names=names))


EXERCISE = Exercise(
    CLIP_ID,
    "One norm for cut and whole",
    ("clip_grad_norm",),
    {
        "values": _CLIPPED,
        "small": _CLIPPED,
        "layout": Run(partial(_clip, view=_columns_first), _inputs, _hand, ClipEvidence),
        "missing": Run(partial(_clip, bare=1, frozen=("second", "norm")), _inputs, _hand, ClipEvidence),
        "none-cut": _clipping_only(WHOLE),
        "none-whole": _clipping_only(CUT),
        "low": _CLIPPED,
        "subgroup": _CLIPPED,
    },
    _cases,
    (
        Property(
            "total-norm",
            "numbers",
            3,
            "The norm is that of the whole model's gradient.",
            "whole parameters counted on every rank: t times too much; or norms added where squares are"
            " meant",
            {"values": every(on_each(_right_norm), _norm_kept)},
        ),
        Property(
            "scaled-gradients",
            "numbers",
            2,
            "All gradients are scaled by max_norm / norm, which is 0 where max_norm is.",
            "only the cut ones were scaled",
            {"values": every(_scaled, _lists_kept)},
        ),
        Property(
            "communication",
            "mechanism",
            1,
            "One all-reduce of one number.",
            "one for each parameter; or gradients gathered",
            {"values": _sends_one_number},
            dict.fromkeys(("small", "layout", "missing", "none-whole", "low", "subgroup"), _sends_one_number),
        ),
        Property(
            "small-norms",
            "robustness",
            1,
            "A smaller norm leaves gradients as they are, a norm of 0 too.",
            "scaled up to max_norm, or divided by 0",
            {"small": _NORM_AND_GRADIENTS},
        ),
        Property(
            "missing-gradients",
            "robustness",
            1,
            "Parameters without gradient are left out, frozen ones that have one are not; either list may be"
            " empty, and a rank without gradients of what is cut takes part.",
            "`if cut:` around the collective leaves the other ranks waiting",
            dict.fromkeys(("missing", "none-cut", "none-whole"), _NORM_AND_GRADIENTS),
        ),
        Property(
            "low-precision",
            "robustness",
            1,
            "Squares of 16-bit gradients are summed in 32 bits, and gradients keep their types.",
            "float() before square()",
            {"low": _NORM_AND_GRADIENTS},
        ),
        any_layout(_NORM_AND_GRADIENTS),
        subgroup(every(_NORM_AND_GRADIENTS, stays_in_group)),
    ),
    forbids=("torch.nn.utils.clip_grad_norm_",),
)
