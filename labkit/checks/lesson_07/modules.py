"""What the exercises of lesson 07 share: the model of a case, how cases are made, and a few judges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import JSON, Case, Inputs
from labkit.checks.exercise import Evidence, Finding, Judge, Property, Run, every
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import STEPS, Call, same
from labkit.checks.shared.places import groups_of, place_of
from labkit.checks.shared.split import Drawn, Split, SplitEvidence, build_and_use, loaded, under
from labkit.checks.shared.split_judges import does_its_share
from labkit.model import ModelConfig, gpt

TORCHS_OWN = (
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.tensor.parallel.loss_parallel",
    "torch.distributed.tensor.distribute_tensor",
    "torch.distributed.tensor.distribute_module",
)
PAIRS = [[0, 3], [1, 2]]
GRADIENTS = "Each rank's parameter gradients are its blocks of the whole module's."
TRAINED = f"After {STEPS} steps of SGD, each rank holds its blocks of the trained module."
STORED = "Each rank keeps its blocks under the names asked for, and nothing else stays in memory."
OWN_PARTS = "Built from your own earlier parts it equals the whole one."
OWN_PARTS_CAUSE = "an earlier exercise does not pass yet; the other properties are judged with its reference"
INFERENCE = "without gradients"  # a call in evaluation, as what it sends is recorded and told
WITHOUT_GROUP = "dist.get_rank() or get_world_size() without the group, or a collective without group="


def own_share(*also: str, besides: Judge | None = None) -> Property:
    """The property that a rank's products are its share, judged on cases "values"; also: on which others.
    besides: what else must hold.
    """
    judge = does_its_share if besides is None else every(does_its_share, besides)
    return Property(
        "own-share",
        "mechanism",
        4,
        "A rank does a t-th of the matrix products.",
        "the ranks' weights were gathered, and every rank computed everything",
        {"values": judge},
        dict.fromkeys(also, judge),
    )


def any_layout(judge: Judge) -> Property:
    """The property that tensors may lie in memory in any order, judged on cases "layout"."""
    says, cause = "Tensors that are not contiguous work.", "use reshape or flatten for view"
    return Property("any-layout", "robustness", 1, says, cause, {"layout": judge})


def subgroup(judge: Judge) -> Property:
    """The property that a group smaller than the job works, judged on cases of that kind."""
    says = "It works in a group that is not the whole job."
    return Property("subgroup", "robustness", 1, says, WITHOUT_GROUP, {"subgroup": judge})


def case_maker(**usual: Any) -> Callable[..., Case]:
    """Makes cases whose params are these where a case does not say otherwise."""

    def make(name: str, kind: str, ranks: int, seed: int, **params: Any) -> Case:
        return Case(name, ranks, {**usual, **params}, seed, kind=kind, own_parts=kind == "own-parts")

    return make


def config_of(case: Case) -> ModelConfig:
    """The case's GPT; what the case does not say is small and odd."""
    p = case.params
    return gpt(
        num_layers=p.get("layers", 2),
        hidden=p["hidden"],
        num_heads=p["heads"],
        vocabulary=p.get("vocabulary", 11),
        max_sequence=p.get("max_sequence", 12),
        num_kv_heads=p.get("kv_heads", p["heads"]),
        head_size=p.get("head_size", 0),
        ffn=p.get("ffn", 0),
        biases=p.get("biases", "all"),
        dropout=p.get("dropout", 0.0),
        tied_embeddings=p.get("tied", True),
    )


def with_eps(module: nn.Module, case: Case) -> nn.Module:
    """The module, with the case's eps in its norms: once in the first, twice in the second, and so on."""
    norms = [norm for norm in module.modules() if isinstance(norm, nn.LayerNorm)]
    for number, norm in enumerate(norms, 1):
        norm.eps = number * case.params["eps"] if "eps" in case.params else norm.eps
    return module


def sequence_parallel(case: Case) -> bool:
    """Whether the case divides the tokens too."""
    return bool(case.params.get("sequence_parallel", False))


def activations(case: Case) -> dict[str, Drawn]:
    """x and the gradient of the output [b, s, h], of which a rank has its tokens where they are divided."""
    shape = (case.params["batch"], case.params["sequence"], case.params["hidden"])
    later = (*shape[:1], fewer_tokens(case), *shape[2:])
    one = Drawn(shape, cut=1 if sequence_parallel(case) else None, later=later)
    return {"x": one, "grad_output": one}


def fewer_tokens(case: Case) -> int:
    """Another length of sequence, which the ranks divide if they divide the case's."""
    size = len(groups_of(case)[0])
    return max(size, case.params["sequence"] - size)


def group_alone(rank: Rank) -> dist.ProcessGroup:
    """A group of this rank alone. Every rank makes all of them, as torch asks."""
    return [dist.new_group([member]) for member in range(rank.world_size)][rank.rank]


def refused_sizes(case: Case) -> list[int]:
    """The numbers that a refusal must name."""
    return case.params["names"]


# -- ids


IDS: tuple[str, ...] = ("ids", "targets")


def at_boundaries(run: Run) -> Run:
    """The run with ids on the boundaries of the ranks' blocks, or all in one block ("owner")."""

    def inputs(case: Case, generator: torch.Generator) -> Inputs:
        return with_boundaries(case, run.inputs(case, generator))

    return replace(run, inputs=inputs)


def with_boundaries(case: Case, inputs: Inputs) -> Inputs:
    """The inputs with ids on the boundaries of the blocks, or all in one block ("owner")."""
    owner = case.params.get("owner")
    if owner is not None:
        rows = -(-case.params["vocabulary"] // case.ranks)
        return inputs | {n: inputs[n] % rows + owner * rows for n in IDS if n in inputs}
    return inputs | {n: boundary_ids(case, inputs[n]) for n in IDS if n in inputs}


def boundary_ids(case: Case, ids: Tensor) -> Tensor:
    """`ids`, beginning with the first and last row of every rank's block, then the last of the vocabulary."""
    vocabulary, size = case.params["vocabulary"], len(case.params.get("groups", [range(case.ranks)])[0])
    rows = -(-vocabulary // size)
    edges = sorted({edge for r in range(size) for edge in (r * rows, r * rows + rows - 1)} | {vocabulary - 1})
    edges = [edge for edge in edges if edge < vocabulary][: ids[0].numel()]
    marked = ids.clone()
    marked.view(len(ids), -1)[:, : len(edges)] = torch.tensor(edges)
    return marked


# -- back to one


def use_and_return(rank: Rank, split: Split) -> None:
    """As `use_part`, and what `to_full` gives afterwards. Answers: to_full.NAME. Fact: names, all of them."""
    part = build_and_use(rank, split)
    state = part.to_full()  # type: ignore[operator]
    rank.fact("names", list(map(str, state)))
    for name, tensor in state.items():
        rank.answer(f"to_full.{name}", tensor)


def comes_back(evidence: SplitEvidence) -> Iterator[Finding]:
    """After training, the part gives the state dict of the whole module trained as long."""
    for answer in evidence.answers:
        full = evidence.split.plain(evidence.case)
        state = loaded(full, under("trained.", evidence.reference(answer))).state_dict()
        for name, expected in state.items():
            told = f"to_full()[{name!r}]: the whole module's after {STEPS} steps"
            yield same(told, expected, answer, f"to_full.{name}")
        names = set(answer.facts["names"])
        other = ", ".join(sorted(names ^ state.keys()))
        yield Finding(names == state.keys(), "the names of the whole module's state", other, answer.rank)


# -- inference after training


def use_and_infer(rank: Rank, split: Split) -> None:
    """As `use_part`, and once more in evaluation, without gradients, with what was first handed over. Answer:
    trained output. Recording: `INFERENCE`.
    """
    part = build_and_use(rank, split).eval()
    handed = [rank.inputs[name].clone() for name in split.arguments]
    with torch.no_grad(), rank.recording(INFERENCE):
        out = split.use(part, handed)
    rank.answer("trained output", out)


def infers_as_trained(evidence: SplitEvidence) -> Iterator[Finding]:
    """After training, what a part gives in evaluation is what the trained whole module gives."""
    for answer in evidence.answers:
        index = place_of(evidence.case, answer.rank).index
        handed = [evidence.inputs[name][index] for name in evidence.split.arguments]
        full = evidence.split.plain(evidence.case)
        loaded(full, under("trained.", evidence.reference(answer))).eval()
        with torch.no_grad():
            expected = evidence.split.use(full, handed)
        told = "the trained whole module's output in evaluation, without gradients"
        yield same(told, expected, answer, "trained output")


# -- the modes of the whole


def modes_changed(before: Mapping[str, bool], full: nn.Module) -> list[JSON]:
    """Names of the parts of a whole module that are in training where they were in evaluation, or the other
    way round; before: what `modes_of` gave.
    """
    return [name or "itself" for name, training in modes_of(full).items() if training != before[name]]


def modes_of(full: nn.Module) -> dict[str, bool]:
    """Of each part of a whole module, whether it is in training."""
    return {name: part.training for name, part in full.named_modules()}


def leaves_modes(evidence: Evidence) -> Iterator[Finding]:
    """The fact "modes", of `modes_changed`, is empty."""
    for answer in evidence.answers:
        changed = ", ".join(answer.facts["modes"])
        told = "the whole module's own modes as they were, after train() and eval() of the part"
        yield Finding(not changed, told, f"another mode of {changed}", answer.rank)


# -- other judges


def where_divided(judge: Judge) -> Judge:
    """The judge of cases whose tokens are divided."""
    return lambda evidence: judge(evidence) if sequence_parallel(evidence.case) else ()


def where_whole(judge: Judge) -> Judge:
    """The judge of cases whose tokens are not divided."""
    return lambda evidence: () if sequence_parallel(evidence.case) else judge(evidence)


def no_calls(evidence: SplitEvidence) -> list[Call]:
    """Nothing is sent."""
    return []


def one_all_reduce(evidence: SplitEvidence) -> list[Call]:
    """One sum of b s h numbers."""
    return [("all_reduce", evidence.bytes_of("grad_output"))]


def ranks_agree(names: Mapping[str, str]) -> Judge:
    """What is whole on every rank is the same on every rank, up to rounding; names: answer -> in words."""

    def judge(evidence: Evidence) -> Iterator[Finding]:
        first = evidence.answers[0].tensors
        for answer in evidence.answers[1:]:
            for name, told in names.items():
                one, two = first[name], answer.tensors[name]
                alike = one.shape == two.shape and torch.allclose(one, two, rtol=1e-9, atol=1e-12)
                yield Finding(alike, f"{told}, the same as on rank 0", "another", answer.rank)

    return judge
