"""What `07.tensor-parallel-block` must show: numbers, traffic, kept activations, dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.exercise import Exercise, Finding, Property, every
from labkit.checks.lesson_07.attention import ATTENTION_ID
from labkit.checks.lesson_07.modules import (
    GRADIENTS,
    INFERENCE,
    OWN_PARTS,
    OWN_PARTS_CAUSE,
    PAIRS,
    STORED,
    TORCHS_OWN,
    TRAINED,
    activations,
    case_maker,
    config_of,
    infers_as_trained,
    leaves_modes,
    modes_changed,
    modes_of,
    own_share,
    ranks_agree,
    sequence_parallel,
    subgroup,
    use_and_infer,
    with_eps,
)
from labkit.checks.lesson_07.pair import PAIR_ID
from labkit.checks.lesson_07.products import PRODUCTS_ID
from labkit.checks.lesson_07.streams import STREAMS_ID
from labkit.checks.lesson_07.twice import adds_to_gradients, use_twice
from labkit.checks.rank import Rank
from labkit.checks.seeding import seed_generators
from labkit.checks.shared.beside import Call, stays_in_group
from labkit.checks.shared.cuts import cut_block
from labkit.checks.shared.held import bytes_kept
from labkit.checks.shared.holding import holding
from labkit.checks.shared.left import left_since
from labkit.checks.shared.places import groups_of
from labkit.checks.shared.proportion import in_proportion
from labkit.checks.shared.split import Split, SplitEvidence, dtype_of, loaded, under, use_part
from labkit.checks.shared.split_judges import EVERYTHING, equals, keeps_blocks, sends, sends_in
from labkit.checks.shared.surroundings import gives_in_evaluation, leaves_the_whole, use_beside_another
from labkit.model import Attend, Block, explicit_attention

BLOCK_ID = "07.tensor-parallel-block"
ADDED = (1.0, 10.0)  # by attention and by the MLP, where what is dropped is looked at
KEPT_WITHIN = (0.75, 1.12)  # measured over formula: statistics of norms and copies of views, not a sequence

DRAWN = 16  # numbers
ROUNDED = 0.2  # of the largest gradient: 16 bits hold no more through a whole block


def _plain(case: Case) -> nn.Module:
    """The whole block; `residual`, where the case has it, is what is dropped of what it adds to x."""
    block = Block(config_of(case), explicit_attention).to(dtype_of(case))
    block.dropout.p = case.params.get("residual", block.dropout.p)
    return with_eps(block, case)


def _streams(rank: Rank, group: dist.ProcessGroup) -> Any:
    """The student's streams, or those put in, for a block."""
    return rank.student.RandomStreams(rank.case.seed, group)


BLOCK = Split(
    plain=_plain,
    build=lambda rank, full, group: rank.student.TensorParallelBlock(
        full, group, _streams(rank, group), sequence_parallel(rank.case)
    ),
    cut=cut_block,
    drawn=activations,
)
_LARGE = {"hidden": 128, "sequence": 64, "batch": 4}  # autograd's own nodes take 40 KB
block_case = case_maker(batch=2, sequence=8, hidden=12, heads=4, ffn=20)


def _cases(seed: int) -> list[Case]:
    return [
        block_case("two ranks", "values", 2, seed, eps=0.05),
        block_case("two ranks, tokens divided", "sequence", 2, seed, eps=0.05, sequence_parallel=True),
        block_case("what is kept", "kept", 2, seed, **_LARGE),
        block_case("dropout", "dropout", 2, seed, dropout=0.5, sequence=16),
        block_case("what is dropped", "what-drops", 2, seed, dropout=0.5, residual=0.25),
        block_case(
            "what is dropped, tokens divided", "what-drops", 2, seed, dropout=0.5, sequence_parallel=True
        ),
        block_case("all parts your own", "own-parts", 2, seed, sequence_parallel=True),
        block_case("four ranks", "values", 4, seed, hidden=16, heads=8, kv_heads=4),
        block_case("four ranks, tokens divided", "sequence", 4, seed, sequence_parallel=True),
        block_case("what is kept, tokens divided", "kept", 4, seed, **_LARGE, sequence_parallel=True),
        block_case(
            "dropout, tokens divided", "dropout", 4, seed, dropout=0.5, sequence=40, sequence_parallel=True
        ),
        block_case("two groups of two", "subgroup", 4, seed, groups=PAIRS),
        block_case("beside one of some ranks", "again", 4, seed),
        block_case("beside one of some ranks, tokens divided", "again", 4, seed, sequence_parallel=True),
        block_case("in pairs, tokens divided", "subgroup", 4, seed, groups=PAIRS, sequence_parallel=True),
    ]


# -- on a rank


def _measure_kept(rank: Rank, split: Split) -> None:
    """Fact: kept, the bytes that one forward leaves behind, beside parameters and its result; those too that
    stay for good, such as a buffer for all calls. Answers: grad.NAME, of what backward then makes of it.
    """
    x = rank.inputs["x"].clone().requires_grad_()

    def prepare() -> Callable[[], Tensor]:
        part = split.build(rank, split.handed(rank), rank.group)
        return lambda: part(x)

    before = holding()
    kept = bytes_kept(prepare)  # the result is as large as x, which is kept but not counted
    rank.fact("kept", kept + left_since(before))
    part = split.build(rank, split.handed(rank), rank.group)
    (part(x) * rank.inputs["grad_output"]).sum().backward()
    for name, parameter in part.named_parameters():
        rank.answer(f"grad.{name}", parameter.grad)


def _watch_dropout(rank: Rank, split: Split) -> None:
    """Answers: differ and agree, in training, as torch's own generators do on the ranks; bare, in training
    without gradients; eval, afterwards. One and two, of blocks that draw from the same streams in turn.
    """
    part = split.build(rank, split.handed(rank), rank.group)
    x, streams = rank.inputs["x"].clone(), _streams(rank, rank.group)
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


def _inputs_for_dropout(case: Case, generator: torch.Generator) -> Inputs:
    """A block whose heads are alike, the second half of which undoes the first, and whose MLP adds nothing:
    only different dropout of the probabilities on different ranks lets anything through.
    """
    inputs = BLOCK.inputs(case, generator)
    full = loaded(BLOCK.plain(case), under("full.", inputs))
    _make_heads_alike(full, config_of(case).head_size)
    return inputs | {f"full.{name}": p.detach() for name, p in full.named_parameters()}


def _use_once(rank: Rank, split: Split) -> None:
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
    before, streams = modes_of(full), _streams(rank, rank.group)
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


def _inputs_that_add_constants(case: Case, generator: torch.Generator) -> Inputs:
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


def block_calls(phase: str, blocks: int = 1) -> Callable[[SplitEvidence], list[Call]]:
    """What blocks send. Attention and MLP: an all-reduce each; with sequence parallelism a gather and a
    scatter each, and in backward the gather of what forward did not keep.
    """

    def calls(evidence: SplitEvidence) -> list[Call]:
        case = evidence.case
        whole = 8 * case.params["batch"] * case.params["sequence"] * case.params["hidden"]
        if not sequence_parallel(case):
            return [("all_reduce", whole)] * (2 * blocks)
        gathers = [("all_gather", whole // len(groups_of(case)[0]))] * (2 if phase == "forward" else 4)
        return (gathers + [("reduce_scatter", whole)] * 2) * blocks

    return calls


def _vectors(evidence: SplitEvidence) -> int:
    """Bytes of a few vectors of h numbers: gradients of norms and biases."""
    return 4 * 8 * evidence.case.params["hidden"]


def _keeps_what_the_plan_says(evidence: SplitEvidence) -> Iterator[Finding]:
    from labkit.theory.activations import eager_counting, layer_activation_bytes

    case = evidence.case
    expected = layer_activation_bytes(
        config_of(case),
        case.params["sequence"],
        case.params["batch"],
        tensor_parallel=case.ranks,
        sequence_parallel=sequence_parallel(case),
        counting=eager_counting(dtype_of(case).itemsize),
    )
    for answer in evidence.answers:
        kept = answer.facts["kept"]
        within = KEPT_WITHIN[0] * expected <= kept <= KEPT_WITHIN[1] * expected
        told = f"about {expected:,.0f} bytes kept for backward on this rank"
        yield Finding(within, told, f"{kept:,} bytes", answer.rank)


def _kept_enough(evidence: SplitEvidence) -> Iterator[Finding]:
    """Of what was kept, or gathered again, backward makes the gradients of all weights."""
    for answer in evidence.answers:
        gradients = evidence.blocks(under("grad.", evidence.reference(answer)), answer)
        weights = [name for name, gradient in gradients.items() if gradient.dim() > 1]
        seen = [answer.tensors.get(f"grad.{name}") for name in weights]
        expected = [gradients[name] for name in weights]
        yield in_proportion("the gradients of all weights", expected, seen, answer.rank, ROUNDED)


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


EXERCISE = Exercise(
    BLOCK_ID,
    "The block",
    ("TensorParallelBlock",),
    {
        "values": BLOCK.run(use_and_infer),
        "sequence": BLOCK.run(use_twice),
        "kept": BLOCK.run(_measure_kept),
        "dropout": replace(BLOCK.run(_watch_dropout), inputs=_inputs_for_dropout),
        "what-drops": replace(BLOCK.run(_use_once), inputs=_inputs_that_add_constants),
        "subgroup": BLOCK.run(use_part),
        "again": BLOCK.run(partial(use_beside_another, other=BLOCK)),
        "own-parts": BLOCK.run(use_part),
    },
    _cases,
    (
        Property(
            "forward-values",
            "numbers",
            3,
            "Every rank's output is that of the whole block.",
            "a residual or norm forgotten",
            {"values": equals("output"), "again": gives_in_evaluation},
        ),
        Property(
            "input-gradients",
            "numbers",
            2,
            "Every rank's gradient of x is that of the whole block.",
            "a residual cut",
            dict.fromkeys(("values", "again"), equals("input_grad")),
        ),
        Property(
            "parameter-gradients",
            "numbers",
            2,
            GRADIENTS,
            "whole parameters have whole gradients already: do not sum them",
            dict.fromkeys(("values", "again"), equals("grad")),
        ),
        Property(
            "trained-weights",
            "numbers",
            1,
            TRAINED,
            "the norms' parameters are not this block's own",
            {"values": every(equals("trained"), infers_as_trained)},
        ),
        Property(
            "communication",
            "mechanism",
            2,
            "Two all-reduces in forward, two in backward.",
            "x gathered or summed once more",
            {
                "values": every(
                    sends(block_calls("forward"), block_calls("backward")),
                    sends_in(INFERENCE, block_calls("forward")),
                )
            },
        ),
        Property(
            "stored-shards",
            "mechanism",
            2,
            STORED,
            "the whole block was kept as an attribute, or its norms shared",
            {"values": keeps_blocks, "again": leaves_the_whole, "what-drops": leaves_modes},
        ),
        Property(
            "sequence-parallel",
            "numbers",
            4,
            "With tokens divided: outputs, gradients and trained weights are those of the whole block.",
            "the norms' gradients know this rank's tokens only: send their parameters through f",
            {"sequence": every(EVERYTHING, adds_to_gradients)},
        ),
        Property(
            "sequence-communication",
            "mechanism",
            2,
            "With tokens divided: two gathers and two scatters in forward; in backward two more gathers.",
            "the block was built from column_parallel and row_parallel",
            {"sequence": sends(block_calls("forward"), block_calls("backward"), ignore=_vectors)},
        ),
        Property(
            "kept-activations",
            "mechanism",
            2,
            "What is kept for backward is what the plan calls for, with whole and with divided tokens.",
            "the gathered x is kept, or tokens are gathered before a norm",
            {"kept": every(_keeps_what_the_plan_says, _kept_enough)},
        ),
        Property(
            "dropout",
            "mechanism",
            3,
            "What is cut drops differently on every rank, what is whole drops alike, evaluation drops"
            " nothing.",
            "one stream for both: cut regions draw from own(), whole ones from shared()",
            {
                "dropout": every(_drops_apart, _drops_alike_what_is_whole),
                "what-drops": every(
                    _drops_both_halves, _halves_by_stream, _attends_anew, _one_stream_at_a_time
                ),
            },
        ),
        own_share(),
        subgroup(every(equals("output"), stays_in_group)),
        Property("own-parts", "numbers", 2, OWN_PARTS, OWN_PARTS_CAUSE, {"own-parts": EVERYTHING}),
    ),
    builds_on=(ATTENTION_ID, STREAMS_ID, PAIR_ID, PRODUCTS_ID),
    forbids=TORCHS_OWN,
    hides=("parallel",),
)
