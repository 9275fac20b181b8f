"""Stage 3: what `FullyShardedModule` must show."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from labkit.checks.case import Case, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Property, Run, every, own_entry
from labkit.checks.lesson_08.held import holds_no_more
from labkit.checks.lesson_08.held_back import goes_on_alone
from labkit.checks.lesson_08.masters import bf16_inputs, masters_are_kept
from labkit.checks.lesson_08.net import (
    FORBIDDEN,
    STEPS,
    TrainedEvidence,
    hand_own_rows,
    loss_of,
    net_inputs,
    net_of,
    same_bits,
    sent,
    uses_both,
    weights_follow,
)
from labkit.checks.lesson_08.stack_bytes import most_in_process
from labkit.checks.lesson_08.stacks import StackEvidence, stack_inputs
from labkit.checks.lesson_08.trained import (
    Pass,
    all_at_once,
    each_by_itself,
    forgotten,
    homeless,
    train,
    train_in_bf16,
    with_evaluations,
)
from labkit.checks.lesson_08.turns import fetches_ahead_in_each_step, leave_in_turn
from labkit.checks.lesson_08.units import module_cases
from labkit.checks.lesson_08.watched import hold_units, watch
from labkit.checks.lesson_08.watched_judges import (
    fetches_ahead,
    follows,
    in_earnest,
    output_follows,
    peaks_stay_small,
    rests_in_shards,
    stays_small,
    three_passes,
)
from labkit.checks.lesson_08.whole import (
    comes_and_goes,
    comes_and_goes_in_bf16,
    few_whole,
    nothing_whole,
    scatters_once_a_backward,
)
from labkit.checks.shared.beside import is_refused, same, stays_in_group
from labkit.checks.shared.places import place_of
from labkit.checks.shared.split import dtype_of, loaded


def outputs_follow(evidence: TrainedEvidence) -> Iterator[Finding]:
    """Outputs, with the weights of that step."""
    for answer, step, m, out, _ in _micro_batches(evidence):
        yield same(f"output, step {step + 1}, micro-batch {m}", out, answer, f"output {step}.{m}")


def input_gradients_follow(evidence: TrainedEvidence) -> Iterator[Finding]:
    """The gradient of x, of the rank's own loss."""
    for answer, step, m, _, gradient in _micro_batches(evidence):
        told = f"gradient of x, step {step + 1}, micro-batch {m}"
        yield same(told, gradient, answer, f"input_grad {step}.{m}")


def _micro_batches(evidence: TrainedEvidence) -> Iterator[tuple[RankAnswer, int, int, Tensor, Tensor]]:
    for answer in evidence.answers:
        states = evidence.trained(place_of(evidence.case, answer.rank).members)
        for step in range(STEPS):
            net = net_of(evidence.case)
            loaded(net, states[step])
            for m in range(evidence.case.params["micro_batches"]):
                x, target = (evidence.inputs[n][answer.rank, step, m].clone() for n in ("x", "target"))
                out = net(x.requires_grad_(), uses_both(evidence.case, answer.rank, step))
                (gradient,) = torch.autograd.grad(loss_of(out, target), x)
                yield answer, step, m, out.detach(), gradient


def sends_rounded_weights(evidence: Evidence) -> Iterator[Finding]:
    """Weights are gathered in bf16, gradients scattered in fp32."""
    case = evidence.case
    shards = [-(-part.numel() // case.ranks) for part in evidence.inputs["w"][0].chunk(2)]
    for answer in evidence.answers:
        for op, most in (("all_gather", 2), ("reduce_scatter", 4 * case.ranks)):
            seen, sizes = sorted(set(sent(answer, "step 0", op))), sorted({most * n for n in shards})
            told = f"{op} of {' or '.join(map(str, sizes))} bytes: gathered in bf16, scattered in fp32"
            yield Finding(seen == sizes, told, f"{seen}", answer.rank)


def scatters_once(evidence: Evidence) -> Iterator[Finding]:
    """No more is scattered than the gradients of what is trained, with their padding, once a micro-batch, and
    no shard of something frozen is among those for an optimizer.
    """
    case = evidence.case
    trained = [sum(p.numel() for p in unit if p.requires_grad) for unit in _parameters_of_units(case)]
    passes = case.params["micro_batches"] * dtype_of(case).itemsize * case.ranks
    most = passes * sum(-(-numel // case.ranks) for numel in trained)
    for answer in evidence.answers:
        for step in range(STEPS):
            scattered = sum(sent(answer, f"step {step}", "reduce_scatter"))
            told = f"at most {most:,} bytes of gradients scattered in step {step + 1}, none of what is frozen"
            yield Finding(scattered <= most, told, f"{scattered:,}", answer.rank)
        frozen = answer.facts["trained"].count(False)
        yield Finding(not frozen, "shards of what is trained alone", f"{frozen} frozen ones", answer.rank)


def _parameters_of_units(case: Case) -> Iterator[list[nn.Parameter]]:
    """Of each unit, without those that an earlier one has."""
    before: list[nn.Parameter] = []
    for unit in net_of(case).units():
        own = [p for p in unit.parameters() if not any(p is other for other in before)]
        before += own
        yield own


def shards_of_its_own(evidence: Evidence) -> Iterator[Finding]:
    """What an optimizer of this module steps belongs to no other module."""
    for answer in evidence.answers:
        foreign = answer.facts["foreign"]
        told = "shards of this module alone"
        yield Finding(not foreign, told, f"{foreign} of a module that was sharded before", answer.rank)


def gathers_again(evidence: Evidence) -> Iterator[Finding]:
    """Each of several micro-batches gathers what the first did: nothing was kept between them."""
    micro_batches = evidence.case.params["micro_batches"]
    for answer in evidence.answers:
        gathered = sent(answer, "step 0", "all_gather")
        each = -(-len(gathered) // micro_batches)
        first, *others = (sorted(gathered[n * each : (n + 1) * each]) for n in range(micro_batches))
        told = f"the same all_gathers in each micro-batch, {first} bytes"
        yield Finding(all(other == first for other in others), told, str(others), answer.rank)


def _trains(one_step: Pass) -> Run:
    return Run(partial(train, one_step=one_step), net_inputs, hand_own_rows, TrainedEvidence)


_ALL = every(outputs_follow, weights_follow)
_TRAINED = ("values", "tied", "twice", "frozen", "aside", "tiny", "subgroup", "evaluated", "together")
_OTHERS = [kind for kind in _TRAINED if kind != "frozen"]  # in whose cases what is frozen is not looked at

FULLY_SHARDED_MODULE = Exercise(
    "08.fully-sharded-module",
    "Stage 3: weights that come and go",
    ("FullyShardedModule",),
    dict.fromkeys(_TRAINED, _trains(each_by_itself))
    | {
        "evaluated": _trains(with_evaluations),
        "together": _trains(all_at_once),
        "bf16": Run(train_in_bf16, bf16_inputs, own_entry),
        "watched": Run(watch, stack_inputs, own_entry, StackEvidence),
        "watched-calls": Run(watch, stack_inputs, own_entry, StackEvidence),
        "watched-frozen": Run(watch, stack_inputs, own_entry, StackEvidence),
        "watched-bf16": Run(watch, stack_inputs, own_entry, StackEvidence),
        "process": Run(hold_units, stack_inputs, own_entry, StackEvidence),
        "homeless": Run(homeless, net_inputs, hand_own_rows),
    },
    module_cases,
    (
        Property(
            "outputs",
            "numbers",
            2,
            "Every output is that of the plain module with the weights of that step.",
            "a unit ran before its weights had arrived, or shards came in another order than the ranks",
            {"values": outputs_follow},
        ),
        Property(
            "input-gradients",
            "numbers",
            1,
            "The gradient of the input is that of the plain module.",
            "backward ran with weights that had been freed, or with another unit's",
            {"values": input_gradients_follow},
        ),
        Property(
            "trained-weights",
            "numbers",
            3,
            "After each step of plain SGD over the shards, the weights are those one process has with all"
            " ranks' rows, and the same on all ranks.",
            "gradients were added and not averaged, or a micro-batch replaced what was there",
            {"values": every(weights_follow, same_bits, shards_of_its_own)},
        ),
        Property(
            "masters",
            "numbers",
            2,
            "The shards of bf16 weights are their fp32 masters: gathered in bf16, gradients added up and"
            " scattered in fp32.",
            "the shards are bf16 themselves: small changes vanish",
            {"bf16": every(masters_are_kept, same_bits, sends_rounded_weights)},
        ),
        Property(
            "shards-at-rest",
            "mechanism",
            3,
            "A rank holds 1/d of the weights, and after backward 1/d of the gradients: before a step, after a"
            " forward (also without gradients, or with an error), after full_weights.",
            "the module's own weights, or the gathered ones, are still there",
            {
                "watched": every(rests_in_shards, in_earnest),
                "process": every(holds_no_more(most_in_process), follows((0, 2))),
                "watched-bf16": every(rests_in_shards, output_follows),
            },
            {**dict.fromkeys(_TRAINED, nothing_whole(frozen=False)), "bf16": nothing_whole()},
        ),
        Property(
            "peak-bytes",
            "mechanism",
            2,
            "At most one unit and `prefetch` more are whole at a time, and the gradients of two.",
            "weights stay until the end of the pass, or gradients are scattered there",
            {
                "watched": every(stays_small, in_earnest),
                "watched-calls": every(peaks_stay_small, in_earnest),
            },
            {
                **dict.fromkeys(("watched-frozen", "watched-bf16"), peaks_stay_small),
                **dict.fromkeys(_OTHERS, every(few_whole, leave_in_turn)),
                "evaluated": few_whole,  # gradients may stay where a forward came before that nobody follows
            },
        ),
        Property(
            "passes",
            "mechanism",
            2,
            "Forward gathers each unit once, backward gathers and scatters each once.",
            "an all_reduce of the gradients, or a gather that fetches what is there",
            {"watched": every(three_passes, in_earnest)},
            {
                **dict.fromkeys(("watched-frozen", "watched-bf16"), three_passes),
                **dict.fromkeys(_TRAINED, every(comes_and_goes(), scatters_once_a_backward)),
                "bf16": comes_and_goes_in_bf16,
            },
        ),
        Property(
            "prefetch",
            "mechanism",
            2,
            "While a unit is at work, the gathers of `prefetch` more have begun, in forward and in backward,"
            " and nobody has waited for them.",
            "the next unit is gathered when it is needed, or waited for at once, or all are gathered at once",
            {"watched": every(fetches_ahead, goes_on_alone, in_earnest)},
            {
                **dict.fromkeys(("watched-frozen", "watched-bf16"), fetches_ahead),
                **dict.fromkeys(_TRAINED, fetches_ahead_in_each_step),
            },
        ),
        Property(
            "tied-weights",
            "robustness",
            2,
            "Two units that share a weight train it as one, and scatter its gradient once.",
            "the second unit has a copy, or its gradient was scattered before the first's was there",
            {"tied": every(_ALL, scatters_once)},
        ),
        Property(
            "called-twice",
            "robustness",
            2,
            "A unit that is called twice gets both gradients and scatters them once; the module may be called"
            " twice before one backward, with evaluations before and after it, and be trained in eval().",
            "its gradient was scattered when backward left it the first time, or an evaluation left weights"
            " behind that the next step does not fetch",
            {"twice": every(_ALL, scatters_once), "together": _ALL, "evaluated": _ALL},
        ),
        Property(
            "frozen-and-unused",
            "robustness",
            1,
            "What is frozen, a unit or a part of one, stays as it is, is freed and not scattered; a unit that"
            " nobody uses is no trouble.",
            "the frozen and the trained parameters of a unit are in one flat tensor",
            {
                "frozen": every(
                    _ALL,
                    scatters_once,
                    gathers_again,
                    nothing_whole(frozen=True),
                    comes_and_goes(frozen=True),
                ),
                "watched-frozen": every(rests_in_shards, in_earnest),
            },
        ),
        Property(
            "unused-weights",
            "robustness",
            2,
            "A weight inside a unit that only some ranks use counts as zeros elsewhere; nobody waits.",
            "the unit is scattered when all its gradients are there: on some ranks never",
            {"aside": _ALL},
        ),
        Property(
            "small-and-missing",
            "robustness",
            1,
            "Fewer numbers than ranks work, and a unit without parameters or that returns what it was given;"
            " a parameter in no unit is refused with a ValueError that names it.",
            "a rank without elements leaves out a collective, or what lies outside all units is passed over",
            {"tiny": _ALL, "homeless": is_refused("refusal", "ValueError", names=forgotten)},
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job.",
            "dist.get_rank() without the group, or a collective without group=",
            {"subgroup": every(weights_follow, stays_in_group)},
        ),
    ),
    forbids=FORBIDDEN,
)
