"""The modules of lesson 07 as trials: attention, embedding, block and GPT; the checks of the first two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.lesson_07.cuts import cut_attention, cut_block, cut_gpt, cut_table
from labkit.checks.lesson_07.trial import ModuleEvidence, Trial, refused, use_module
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.places import enter_group
from labkit.checks.shared.sharded_evidence import nbytes
from labkit.checks.shared.sharded_layer import dtype_of
from labkit.model import Attention, Block, ModelConfig, Transformer, explicit_attention, gpt


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


def _hidden_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    lead = (case.params["batch"], case.params["sequence"], case.params["hidden"])
    return {"x": lead, "grad_output": lead}


def _embedding_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    lead = (case.params["batch"], case.params["sequence"])
    return {"ids": lead, "grad_output": (*lead, case.params["hidden"])}


def _gpt_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    lead = (case.params["batch"], case.params["sequence"])
    return {"ids": lead, "targets": lead}


def _run_gpt(model: nn.Module, arguments: Sequence[Tensor]) -> Tensor:
    return model.loss(*arguments)  # type: ignore[operator]


def sequence_parallel(case: Case) -> bool:
    """Whether the case divides the tokens too."""
    return bool(case.params.get("sequence_parallel", False))


ATTENTION = Trial(
    plain=lambda case: Attention(config_of(case), explicit_attention).to(dtype_of(case)),
    build=lambda rank, full, group: rank.student.TensorParallelAttention.from_attention(full, group),
    cut=cut_attention,
    run=lambda module, arguments: module(*arguments),
    arguments=("x",),
    shapes=_hidden_shapes,
)
EMBEDDING = Trial(
    plain=lambda case: nn.Embedding(case.params["vocabulary"], case.params["hidden"], dtype=dtype_of(case)),
    build=lambda rank, full, group: rank.student.VocabParallelEmbedding.from_embedding(full, group),
    cut=cut_table,
    run=lambda module, arguments: module(*arguments),
    arguments=("ids",),
    shapes=_embedding_shapes,
)
BLOCK = Trial(
    plain=lambda case: Block(config_of(case), explicit_attention).to(dtype_of(case)),
    build=lambda rank, full, group: rank.student.TensorParallelBlock(
        full, group, rank.student.RandomStreams(rank.case.seed, group), sequence_parallel(rank.case)
    ),
    cut=cut_block,
    run=lambda module, arguments: module(*arguments),
    arguments=("x",),
    shapes=_hidden_shapes,
)
GPT = Trial(
    plain=lambda case: Transformer(config_of(case), explicit_attention).to(dtype_of(case)),
    build=lambda rank, full, group: rank.student.TensorParallelGPT.from_full(
        full, group, rank.case.seed, sequence_parallel(rank.case)
    ),
    cut=cut_gpt,
    run=_run_gpt,
    arguments=("ids", "targets"),
    shapes=_gpt_shapes,
)


# -- attention


def attention_on_rank(rank: Rank) -> None:
    """Use the part, or ask for one that cannot be."""
    if rank.params["kind"] == "refused":
        with rank.expect_error("refusal"):
            ATTENTION.build(rank, ATTENTION.plain(rank.case), enter_group(rank))
        return
    use_module(rank, ATTENTION)


def judge_attention(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for what the case is about."""
    evidence = ModuleEvidence(case, inputs, answers, ATTENTION)
    yield from evidence.usual()
    if case.params["kind"] == "values":
        one = ("all_reduce", nbytes(inputs["x"][0]))
        yield from evidence.traffic("communication", "forward", one)
        yield from evidence.traffic("communication", "backward", one)


# -- embedding


IDS: tuple[str, ...] = ("ids", "targets")


def boundary_ids(case: Case, ids: Tensor) -> Tensor:
    """`ids`, beginning with the first and last row of every rank's block, then the last of the vocabulary."""
    vocabulary, size = case.params["vocabulary"], len(case.params.get("groups", [range(case.ranks)])[0])
    rows = -(-vocabulary // size)
    edges = sorted({edge for r in range(size) for edge in (r * rows, r * rows + rows - 1)} | {vocabulary - 1})
    edges = [edge for edge in edges if edge < vocabulary][: ids[0].numel()]
    marked = ids.clone()
    marked.view(len(ids), -1)[:, : len(edges)] = torch.tensor(edges)
    return marked


def with_boundaries(case: Case, inputs: Inputs) -> Inputs:
    """The inputs with ids on the boundaries of the blocks, or all in one block ("owner")."""
    owner = case.params.get("owner")
    if owner is not None:
        rows = -(-case.params["vocabulary"] // case.ranks)
        return inputs | {n: inputs[n] % rows + owner * rows for n in IDS if n in inputs}
    return inputs | {n: boundary_ids(case, inputs[n]) for n in IDS if n in inputs}


def embedding_on_rank(rank: Rank) -> None:
    """Use the part, or look up ids that are not in the vocabulary."""
    if rank.params["kind"] == "wrong-ids":
        part = EMBEDDING.build(rank, EMBEDDING.plain(rank.case).to(rank.device), rank.group)
        for name, wrong in (("too large", rank.params["vocabulary"]), ("negative", -1)):
            ids = rank.inputs["ids"][0].clone()
            ids[-1, -1] = wrong
            with rank.expect_error(name):
                part(ids)
        return
    use_module(rank, EMBEDDING)


def judge_embedding(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for what the case is about."""
    evidence = ModuleEvidence(case, inputs, answers, EMBEDDING)
    if case.params["kind"] == "wrong-ids":
        for name in ("too large", "negative"):
            yield from refused("wrong-ids", answers, name, ["IndexError", "ValueError"])
        return
    yield from evidence.usual()
    if case.params["kind"] == "values":
        one = ("all_reduce", nbytes(inputs["grad_output"][0]))
        yield from evidence.traffic("communication", "forward", one)
        yield from evidence.traffic("communication", "backward")


def replicated_agree(
    property_name: str, answers: list[RankAnswer], names: Mapping[str, str]
) -> Iterator[Finding]:
    """What is whole on every rank is the same on every rank, up to rounding."""
    for answer in answers[1:]:
        for name, told in names.items():
            first, seen = answers[0].tensors[name], answer.tensors[name]
            same = first.shape == seen.shape and torch.allclose(first, seen, rtol=1e-9, atol=1e-12)
            yield Finding(property_name, same, f"{told}, the same as on rank 0", "another", answer.rank)
