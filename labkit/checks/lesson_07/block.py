"""The checks of the block and the GPT: numbers, traffic, kept activations, dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.lesson_07.modules import BLOCK, GPT, config_of, replicated_agree, sequence_parallel
from labkit.checks.lesson_07.trial import ModuleEvidence, own_part, use_module, whole_on
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.places import enter_group, place_of
from labkit.checks.shared.sharded_evidence import finding
from labkit.record.memory import SavedTensors

KEPT_WITHIN = (0.75, 1.12)  # measured over formula: statistics of norms and copies of views, not a sequence


# -- the block


def block_on_rank(rank: Rank) -> None:
    """Use the part, measure what it keeps, or watch what it drops."""
    match rank.params["kind"]:
        case "dropout":
            _watch_dropout(rank)
        case "kept":
            _measure_kept(rank)
        case _:
            use_module(rank, BLOCK)


def _measure_kept(rank: Rank) -> None:
    """Fact: kept, the bytes autograd keeps of one forward without parameters."""
    full = whole_on(rank, BLOCK)
    part = BLOCK.build(rank, full, rank.group)
    x = own_part(rank.case, rank.inputs["x"][0], place_of(rank.case, rank.rank)).clone().requires_grad_()
    saved = SavedTensors(leave_out=part.parameters())
    with saved.recording():
        out = part(x)
    rank.fact("kept", saved.num_bytes)
    del out


def _watch_dropout(rank: Rank) -> None:
    """Answers: three outputs. Twice in training, once in evaluation; torch's generators differ, then agree.

    The heads are alike, the second half undoes the first, and the MLP adds nothing: only different dropout of
    the probabilities on different ranks lets anything through.
    """
    full = whole_on(rank, BLOCK)
    _same_heads(full, config_of(rank.case).head_size)
    part = BLOCK.build(rank, full, rank.group)
    x = own_part(rank.case, rank.inputs["x"][0], place_of(rank.case, rank.rank)).clone()
    for name, seed in (("differ", rank.rank), ("agree", 0)):
        seed_generators(seed)
        rank.answer(name, part(x) - x)
    part.eval()
    rank.answer("eval", part(x) - x)


def _same_heads(full: Any, d: int) -> None:
    with torch.no_grad():
        for projection in (full.attention.query, full.attention.key, full.attention.value):
            heads = projection.out_features // d
            projection.weight.copy_(projection.weight[:d].repeat(heads, 1))
            projection.bias.copy_(projection.bias[:d].repeat(heads))
        output = full.attention.output
        first, heads = output.weight[:, :d].clone(), output.in_features // d
        output.weight.copy_(torch.cat([first] * (heads // 2) + [-first] * (heads - heads // 2), dim=1))
        output.bias.zero_()
        for parameter in full.mlp.parameters():
            parameter.zero_()


def judge_block(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for what the case is about."""
    evidence = ModuleEvidence(case, inputs, answers, BLOCK)
    match case.params["kind"]:
        case "values":
            yield from evidence.usual()
            for phase in ("forward", "backward"):
                yield from evidence.traffic("communication", phase, *_block_calls(case, inputs, phase))
        case "sequence":
            yield from evidence.usual()
            for phase in ("forward", "backward"):
                calls = _block_calls(case, inputs, phase)
                small = 4 * 8 * case.params["hidden"]
                yield from evidence.traffic("sequence-communication", phase, *calls, ignore=small)
        case "kept":
            yield from _kept(case, answers)
        case "dropout":
            yield from _dropped(case, answers)
        case _:
            yield from evidence.usual()


def _block_calls(case: Case, inputs: Inputs, phase: str, blocks: int = 1) -> list[tuple[str, int]]:
    """Attention and MLP: an all-reduce each; with sequence parallelism a gather and a scatter each, and in
    backward the gather of what forward did not keep.
    """
    whole = 8 * case.params["batch"] * case.params["sequence"] * case.params["hidden"]
    if not sequence_parallel(case):
        return [("all_reduce", whole)] * (2 * blocks)
    gathers = 2 if phase == "forward" else 4
    return [("all_gather", whole // case.ranks)] * (gathers * blocks) + [("reduce_scatter", whole)] * (
        2 * blocks
    )


def _kept(case: Case, answers: list[RankAnswer]) -> Iterator[Finding]:
    from labkit.theory.activations import eager_counting, layer_activation_bytes

    p = case.params
    expected = layer_activation_bytes(
        config_of(case),
        p["sequence"],
        p["batch"],
        tensor_parallel=case.ranks,
        sequence_parallel=sequence_parallel(case),
        counting=eager_counting(8),
    )
    for answer in answers:
        kept = answer.facts["kept"]
        within = KEPT_WITHIN[0] * expected <= kept <= KEPT_WITHIN[1] * expected
        told = f"about {expected:,.0f} bytes kept for backward on this rank"
        yield finding("kept-activations", within, told, f"{kept:,} bytes", answer)


def _dropped(case: Case, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Attention drops differently on every rank, what is whole drops alike, evaluation drops nothing."""
    for answer in answers:
        through = (answer.tensors["agree"].abs() > 1e-9).double().mean().item()
        told = "attention probabilities dropped differently on every rank"
        yield finding("dropout", through > 0.1, told, "the same dropout on ranks with other heads", answer)
        dropped = (answer.tensors["differ"].abs() < 1e-12).double().mean().item()
        told = "about half of what attention adds to x dropped"
        yield finding("dropout", 0.25 < dropped < 0.75, told, f"{dropped:.0%} dropped", answer)
        quiet = answer.tensors["eval"].abs().max().item() < 1e-9
        yield finding("dropout", quiet, "nothing dropped after eval()", "something was", answer)
        same = _alike(answer.tensors["differ"], answer.tensors["agree"])
        yield finding("dropout", not same, "another mask in the next forward", "the same", answer)
    if not sequence_parallel(case):
        names = {n: f"the output with dropout, torch's generators {n}" for n in ("differ", "agree")}
        yield from replicated_agree("dropout", answers, names)
        return
    for answer in answers[2:]:  # attention often adds nothing to the first token, which rank 0 has
        same = _alike(answer.tensors["agree"], answers[1].tensors["agree"])
        told = "another mask than rank 1's for this rank's own tokens"
        yield finding("dropout", not same, told, "the same mask", answer)


def _alike(one: Tensor, two: Tensor) -> bool:
    """Whether two dropped tensors are zero in nearly the same places; attention itself is zero in a few."""
    return bool(((one.abs() < 1e-12) == (two.abs() < 1e-12)).double().mean() > 0.85)


# -- the GPT


def gpt_on_rank(rank: Rank) -> None:
    """Use the part; or watch its replicas under dropout; or ask for what cannot be."""
    match rank.params["kind"]:
        case "dropout":
            part = GPT.build(rank, whole_on(rank, GPT), rank.group)
            for name in ("first", "second"):
                part.zero_grad()
                loss = GPT.run(part, [rank.inputs["ids"][0], rank.inputs["targets"][0]])
                loss.backward()
                rank.answer(f"{name} loss", loss)
            rank.answer("positions", dict(part.named_parameters())["positions"].grad)
        case "refused":
            part = GPT.build(rank, GPT.plain(rank.case).to(rank.device), enter_group(rank))
            with rank.expect_error("refusal"):
                part.loss(rank.inputs["ids"][0], rank.inputs["targets"][0])  # type: ignore[operator]
        case _:
            use_module(rank, GPT)


def judge_gpt(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Findings for what the case is about."""
    evidence = ModuleEvidence(case, inputs, answers, GPT)
    match case.params["kind"]:
        case "values":
            yield from evidence.usual()
            yield from _gpt_traffic(case, evidence, inputs)
        case "dropout":
            names = {f"{n} loss": f"the {n} loss with dropout" for n in ("first", "second")}
            yield from replicated_agree(
                "dropout", answers, names | {"positions": "the gradient of positions"}
            )
            first, second = (answers[0].tensors[f"{n} loss"] for n in ("first", "second"))
            yield Finding("dropout", not torch.equal(first, second), "another loss each time", "the same", 0)
        case _:
            yield from evidence.usual()


def _gpt_traffic(case: Case, evidence: ModuleEvidence, inputs: Inputs) -> Iterator[Finding]:
    """The blocks, the embedding's sum forward and the head's backward, and a few numbers a token."""
    layers = config_of(case).num_layers
    tokens = inputs["ids"][0].numel()
    for phase in ("forward", "backward"):
        calls = [
            *_block_calls(case, inputs, phase, layers),
            ("all_reduce", 8 * tokens * case.params["hidden"]),
        ]
        yield from evidence.traffic("communication", phase, *calls, ignore=5 * 8 * tokens)
