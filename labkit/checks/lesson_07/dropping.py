"""What `07.tensor-parallel-block` drops, where, and from which stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.exercise import Finding, every
from labkit.checks.lesson_07.block_split import BLOCK, streams_of
from labkit.checks.lesson_07.modules import config_of, modes_changed, modes_of, ranks_agree, sequence_parallel
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.split import Split, SplitEvidence, loaded, under
from labkit.model import Attend

ADDED = (1.0, 10.0)  # by attention and by the MLP, where what is dropped is looked at
DRAWN = 16  # numbers

# -- on a rank


def watch_dropout(rank: Rank, split: Split) -> None:
    """Answers: differ and agree, in training, as torch's own generators do on the ranks; bare, in training
    without gradients; eval, afterwards. One and two, of blocks that draw from the same streams in turn.
    """
    part = split.build(rank, split.handed(rank), rank.group)
    x, streams = rank.inputs["x"].clone(), streams_of(rank, rank.group)
    for name in ("one", "two"):
        block = rank.student.TensorParallelBlock(
            split.handed(rank), rank.group, streams, sequence_parallel(rank.case)
        )
        rank.answer(name, block(x) - x)
    for name, seed in (("differ", rank.rank), ("agree", 0)):
        seed_generators(seed)
        rank.answer(name, part(x) - x)
    with torch.no_grad():
        rank.answer("bare", part(x) - x)
    part.eval()
    rank.answer("eval", part(x) - x)


def inputs_for_dropout(case: Case, generator: torch.Generator) -> Inputs:
    """A block whose heads are alike, the second half of which undoes the first, and whose MLP adds nothing:
    only different dropout of the probabilities on different ranks lets anything through.
    """
    inputs = BLOCK.inputs(case, generator)
    full = loaded(BLOCK.plain(case), under("full.", inputs))
    _make_heads_alike(full, config_of(case).head_size)
    return inputs | {f"full.{name}": p.detach() for name, p in full.named_parameters()}


def use_once(rank: Rank, split: Split) -> None:
    """Answers: added and evaluated, what the block adds to x in training and after eval(). Facts: asked, with
    which dropout heads attend; modes, what is in another mode in the whole block afterwards; deepest, how
    many streams were entered inside each other. Answer: drawn, numbers that heads draw as they attend, then
    in another call, and in another block that draws from the same streams.

    Torch's own generator is alike on the ranks where tokens are divided, and differs where they are whole, so
    that drawing from it instead of the streams shows.
    """
    full, asked, drawn = split.handed(rank), list[JSON](), list[Tensor]()
    attention = full.get_submodule("attention")
    plain: Attend = attention.attend  # type: ignore[assignment]

    def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        asked.append(float(dropout))
        drawn.append(torch.rand(DRAWN, device=q.device))
        return plain(q, k, v, dropout)

    attention.attend = attend  # type: ignore[assignment]
    before, streams = modes_of(full), streams_of(rank, rank.group)
    entered = _count_entered(streams)
    part = rank.student.TensorParallelBlock(full, rank.group, streams, sequence_parallel(rank.case))
    x = rank.inputs["x"].clone()
    seed_generators(0 if sequence_parallel(rank.case) else rank.rank)
    rank.answer("added", part(x) - x)
    rank.answer("evaluated", part.eval()(x) - x)
    rank.fact("asked", list(asked))
    rank.fact("modes", modes_changed(before, full))
    rank.fact("deepest", max(accumulate(entered, initial=0)))
    del drawn[1:]
    part.train()(x)
    rank.student.TensorParallelBlock(full, rank.group, streams, sequence_parallel(rank.case))(x)
    rank.answer("drawn", torch.stack(drawn) if drawn else torch.zeros(0, DRAWN))


def _count_entered(streams: Any) -> list[int]:
    """What grows by 1 whenever one of the streams is entered, and by -1 when it is left."""
    steps: list[int] = []

    @contextmanager
    def counted(enter: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        steps.append(1)
        try:
            with enter():
                yield
        finally:
            steps.append(-1)

    streams.shared, streams.own = partial(counted, streams.shared), partial(counted, streams.own)
    return steps


def inputs_that_add_constants(case: Case, generator: torch.Generator) -> Inputs:
    """A block whose attention adds `ADDED[0]` to each number, and whose MLP adds `ADDED[1]`."""
    inputs = BLOCK.inputs(case, generator)
    for name, added in zip(("attention.output", "mlp.down"), ADDED, strict=True):
        inputs[f"full.{name}.weight"].zero_()
        inputs[f"noise.{name}.weight"].zero_()
        inputs[f"full.{name}.bias"].fill_(added)
    return inputs


def _make_heads_alike(full: Any, d: int) -> None:
    attention = full.attention
    with torch.no_grad():
        for projection in (attention.query, attention.key, attention.value):
            heads = projection.out_features // d
            projection.weight.copy_(projection.weight[:d].repeat(heads, 1))
            projection.bias.copy_(projection.bias[:d].repeat(heads))
        output = attention.output
        first, heads = output.weight[:, :d].clone(), output.in_features // d
        output.weight.copy_(torch.cat([first] * (heads // 2) + [-first] * (heads - heads // 2), dim=1))
        output.bias.zero_()
        for parameter in full.mlp.parameters():
            parameter.zero_()


# -- judges


def _drops_apart(evidence: SplitEvidence) -> Iterator[Finding]:
    """Attention drops differently on every rank, and in every forward; evaluation drops nothing."""
    for answer in evidence.answers:
        differ, agree = answer.tensors["differ"], answer.tensors["agree"]
        through = (agree.abs() > 1e-9).double().mean().item()
        told = "attention probabilities dropped differently on every rank"
        yield Finding(through > 0.1, told, "the same dropout on ranks with other heads", answer.rank)
        for when, added in {"in training": differ, "and under no_grad": answer.tensors["bare"]}.items():
            dropped = (added.abs() < 1e-12).double().mean().item()
            told = f"about half of what attention adds to x dropped, {when}"
            yield Finding(0.25 < dropped < 0.75, told, f"{dropped:.0%} dropped", answer.rank)
        quiet = answer.tensors["eval"].abs().max().item() < 1e-9
        yield Finding(quiet, "nothing dropped after eval()", "something was", answer.rank)
        yield Finding(not _alike(differ, agree), "another mask in the next forward", "the same", answer.rank)
        apart = not _alike(answer.tensors["one"], answer.tensors["two"])
        told = "another mask in the next block that draws from the same streams"
        yield Finding(apart, told, "the same", answer.rank)


def _drops_alike_what_is_whole(evidence: SplitEvidence) -> Iterator[Finding]:
    """What is whole drops alike; where each rank has its own tokens, these drop apart."""
    if not sequence_parallel(evidence.case):
        names = {n: f"the output with dropout, torch's generators {n}" for n in ("differ", "agree")}
        yield from ranks_agree(names)(evidence)
        return
    second: RankAnswer = evidence.answers[1]
    for answer in evidence.answers[2:]:  # attention often adds nothing to the first token, which rank 0 has
        told = "another mask than rank 1's for this rank's own tokens"
        apart = not _alike(answer.tensors["agree"], second.tensors["agree"])
        yield Finding(apart, told, "the same mask", answer.rank)


def _drops_both_halves(evidence: SplitEvidence) -> Iterator[Finding]:
    """What attention adds is zero or scaled by 1 / (1 - p), and so is what the MLP adds; all after eval()."""
    params = evidence.case.params
    scale = 1 / (1 - params.get("residual", params["dropout"]))
    one, other = (added * scale for added in ADDED)
    expected = {round(left, 6) for left in (0.0, one, other, one + other)}
    for answer in evidence.answers:
        seen = {round(number, 6) for number in answer.tensors["added"].flatten().tolist()}
        told = f"of {ADDED[0]:g} and {ADDED[1]:g} that are added, {sorted(expected)} left by dropout"
        yield Finding(seen == expected, told, f"{sorted(seen)[:6]}", answer.rank)
        whole = sum(ADDED)
        off = (answer.tensors["evaluated"] - whole).abs().max().item()
        told = f"{whole:g} added to each number of x after eval(), where nothing is dropped"
        yield Finding(off < 1e-6, told, f"up to {off:.4g} off", answer.rank)
        asked = answer.facts["asked"]
        told = f"heads attend once, with the attention's dropout {params['dropout']}, then 0.0 after eval()"
        yield Finding(asked == [params["dropout"], 0.0], told, f"{asked}", answer.rank)


def _attends_anew(evidence: SplitEvidence) -> Iterator[Finding]:
    """As heads attend, a stream goes on: in the next call, and in the next block."""
    first = evidence.answers[0].tensors["drawn"]
    for answer in evidence.answers:
        drawn = answer.tensors["drawn"]
        new = len(drawn.unique(dim=0))
        told = "other probabilities dropped in the next call, and in the next block of the same streams"
        yield Finding(new == len(drawn) > 2, told, f"{new} draws of {len(drawn)} are different", answer.rank)
        if answer.rank:
            told = "other probabilities dropped than on rank 0"
            yield Finding(not torch.equal(drawn[:1], first[:1]), told, "the same", answer.rank)


def _one_stream_at_a_time(evidence: SplitEvidence) -> Iterator[Finding]:
    for answer in evidence.answers:
        deepest = answer.facts["deepest"]
        yield Finding(deepest < 2, "no stream entered inside another one", f"{deepest} at once", answer.rank)


def _halves_by_stream(evidence: SplitEvidence) -> Iterator[Finding]:
    """What is dropped of each half alone: other places on each rank where tokens are divided, else the
    same.
    """
    divided, first = sequence_parallel(evidence.case), evidence.answers[0].tensors["added"]
    for answer in evidence.answers[1:]:
        for half, one, two in zip(
            ("attention", "the MLP"),
            _left(evidence, first),
            _left(evidence, answer.tensors["added"]),
            strict=True,
        ):
            told = f"of what {half} adds, {'other' if divided else 'the same'} places dropped than on rank 0"
            seen = "the same" if divided else "others"
            yield Finding(torch.equal(one, two) != divided, told, seen, answer.rank)


def _left(evidence: SplitEvidence, added: Tensor) -> tuple[Tensor, Tensor]:
    """Where something is left of what attention adds, and of what the MLP does, which is far more."""
    params = evidence.case.params
    scale = 1 / (1 - params.get("residual", params["dropout"]))
    of_mlp = added > (ADDED[0] + ADDED[1]) / 2 * scale
    return added - of_mlp * ADDED[1] * scale > ADDED[0] / 2 * scale, of_mlp


def _alike(one: Tensor, two: Tensor) -> bool:
    """Whether two dropped tensors are zero in nearly the same places; attention itself is zero in a few."""
    return bool(((one.abs() < 1e-12) == (two.abs() < 1e-12)).double().mean() > 0.85)


DROPS_APART = every(_drops_apart, _drops_alike_what_is_whole)
DROPS_BY_STREAM = every(_drops_both_halves, _halves_by_stream, _attends_anew, _one_stream_at_a_time)
