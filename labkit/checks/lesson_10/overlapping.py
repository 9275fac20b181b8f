"""What `10.slow-program-1` must show: gradients that are on their way while backward still computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from random import Random

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.exercise import Evidence, Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_10.acts import acts_of, all_from_python, all_waited_for
from labkit.checks.lesson_10.again import (
    CALLS,
    WHOLE_JOB_STEPS,
    hooks_on,
    leave_gradients,
    leaves_no_hook,
    no_hook_is_left,
    train_again,
)
from labkit.checks.lesson_10.each_call import ACTS, TRAINING, of_each_call, written_down
from labkit.checks.lesson_10.going_on import goes_on, taking_turns
from labkit.checks.lesson_10.left_hooks import run_by_backward
from labkit.checks.lesson_10.plain_sgd import OTHER_RATE, USUAL_RATE, sgd_step
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import nbytes, on_each, same, stays_in_group
from labkit.checks.shared.places import enter_group, groups_of, place_of
from labkit.checks.shared.proportion import change_since, in_proportion
from labkit.record.replay import Act

SEVERAL = 3  # buckets at least, where the model has as many layers
ASIDE = 0.2  # of the largest change of a weight
MANY_STEPS = (9, 12)  # from and to
HIDDEN_SHARE = 0.5  # of the bytes of each step that must have computation behind them


def overlap_case(name: str, kind: str, ranks: int, seed: int, widths: Sequence[int], **more: object) -> Case:
    """Layers of these widths; `steps` steps of `rows` rows a rank."""
    usual = {"rows": 6, "steps": 2, "learning_rate": USUAL_RATE, "dtype": "float64"}
    params = {"widths": list(widths), **usual, **more}
    return Case(name, ranks, params, seed, kind=kind, timeout=40.0)


def _cases(seed: int) -> list[Case]:
    even, uneven = [24] * 9, [8, 30, 30, 5, 40, 40, 12, 12, 4]
    first_three = [30, 30, 30, 30, 5, 20, 20, 12, 12, 12, 9, 9, 4]  # have more than half of the bytes
    many = Random(f"10/overlap/steps/{seed}").randint(*MANY_STEPS)
    return [
        overlap_case("two ranks", "values", 2, seed, uneven),
        overlap_case("four ranks", "values", 4, seed, even, steps=3, rows=2, learning_rate=OTHER_RATE),
        overlap_case("two groups of two", "subgroup", 4, seed, uneven, groups=[[0, 2], [1, 3]], steps=3),
        overlap_case("one rank", "alone", 1, seed, uneven),
        overlap_case("two ranks, watched", "watched", 2, seed, even, steps=many),
        overlap_case("uneven layers, watched", "watched", 2, seed, first_three, dtype="float32"),
    ]


def dtype_of(case: Case) -> torch.dtype:
    """Of weights and batches."""
    return {"float64": torch.float64, "float32": torch.float32}[case.params["dtype"]]


def net_of(case: Case) -> nn.Sequential:
    """Linear layers with tanh between them, the same weights everywhere."""
    torch.manual_seed(case.seed + 7)
    widths = case.params["widths"]
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer, dtype=dtype_of(case)), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _inputs(case: Case, generator: torch.Generator) -> Inputs:
    """x, y: [ranks, steps, rows, features]."""
    shape = (case.ranks, case.params["steps"], case.params["rows"])
    ends = {"x": case.params["widths"][0], "y": case.params["widths"][-1]}
    return {
        name: torch.randn(*shape, width, generator=generator, dtype=dtype_of(case))
        for name, width in ends.items()
    }


def _hand(case: Case, inputs: Inputs, rank: int) -> Inputs:
    return {name: tensor[rank] for name, tensor in inputs.items()}


def _train(rank: Rank) -> None:
    """Answers: trained.NAME. Recording, and acts: training."""
    group, net = enter_group(rank), net_of(rank.case)
    with written_down(rank, TRAINING):
        rank.student.program_1(net, _batches(rank), group, rank.params["learning_rate"])
    for name, parameter in net.named_parameters():
        rank.answer(f"trained.{name}", parameter)


def _train_twice(rank: Rank) -> None:
    """A call for each of the steps, with batches that can be gone through once, of a net that comes with
    gradients, the first in the whole job, and one without batches. Answers: trained.NAME. Recordings:
    training, again. Fact: hooks, left on it.
    """
    own, net = enter_group(rank), net_of(rank.case)
    leave_gradients(net)
    batches, rate = _batches(rank), rank.params["learning_rate"]

    def step(number: int, group: dist.ProcessGroup) -> None:
        rank.student.program_1(net, iter([batches[number]]), group, rate)

    train_again(rank, own, step)
    rank.student.program_1(net, iter([]), own, rate)
    for name, parameter in net.named_parameters():
        rank.answer(f"trained.{name}", parameter)
    x, y = batches[0]
    fresh = net_of(rank.case)
    run = run_by_backward(lambda: (net(x) - y).sum(), lambda: (fresh(x) - y).sum())
    rank.fact("hooks", hooks_on(net) + run)


def _watch(rank: Rank) -> None:
    """The same as `_train`, and what was done in which order. Recording: training. Facts: acts; came, gave_up
    of `taking_turns`. Answers: trained.NAME.
    """
    group, net = enter_group(rank), net_of(rank.case)
    steps = rank.params["steps"]
    with rank.recording(TRAINING), rank.journal(ACTS) as acts, taking_turns(rank, net, acts, steps):
        rank.student.program_1(net, _batches(rank), group, rank.params["learning_rate"])
    for name, parameter in net.named_parameters():
        rank.answer(f"trained.{name}", parameter)


def _batches(rank: Rank) -> list[tuple[Tensor, Tensor]]:
    return list(zip(rank.inputs["x"], rank.inputs["y"], strict=True))


@dataclass(frozen=True)
class OneProcess(Evidence):
    """What one process with the rows of a whole group trains."""

    @cached_property
    def trained(self) -> dict[tuple[int, ...], dict[str, Tensor]]:
        """Members of a group -> name -> weights."""
        return {tuple(members): self._train(members) for members in groups_of(self.case)}

    def _train(self, members: Sequence[int]) -> dict[str, Tensor]:
        net = net_of(self.case)
        for step in range(self.case.params["steps"]):
            x, y = (self.inputs[name][self._at_work(members, step), step].flatten(0, 1) for name in "xy")
            sgd_step(net, nn.functional.mse_loss(net(x), y), self.case.params["learning_rate"])
        return {name: parameter.detach() for name, parameter in net.named_parameters()}

    def _at_work(self, members: Sequence[int], step: int) -> list[int]:
        """Whose rows a step takes: a case of groups begins in the whole job."""
        together = self.case.kind == "subgroup" and step < WHOLE_JOB_STEPS
        return list(range(self.case.ranks)) if together else list(members)


def _trained(evidence: OneProcess) -> Iterator[Finding]:
    for answer in evidence.answers:
        members = tuple(place_of(evidence.case, answer.rank).members)
        for name, expected in evidence.trained[members].items():
            yield same(f"{name} after training", expected, answer, f"trained.{name}")


def _trained_alike(evidence: OneProcess, answer: RankAnswer) -> Finding:
    """Whether the weights have moved as in one process; a mean that is a sum moves them farther, and a little
    aside.
    """
    start = net_of(evidence.case).state_dict()
    (trained,) = evidence.trained.values()
    expected = [trained[name] - start[name] for name in trained]
    seen = [change_since(start[name], answer.tensors[f"trained.{name}"]) for name in trained]
    return in_proportion("the change of the weights", expected, seen, answer.rank, ASIDE)


def _starts(answer: RankAnswer) -> list[Act]:
    """The calls that a rank began, but for barriers, which send nothing."""
    return [act for act in acts_of(answer) if act.kind == "start" and act.op != "barrier"]


def _whole_gradients(evidence: Evidence, answer: RankAnswer) -> Finding:
    starts = _starts(answer)
    steps = evidence.case.params["steps"]
    whole = steps * sum(nbytes(p) for p in net_of(evidence.case).parameters())
    moved = sum(act.num_bytes for act in starts)
    ops = sorted({act.op for act in starts})
    right = moved == whole and ops == ["all_reduce"]
    told = f"all_reduces of the gradients' {whole:,} bytes in {steps} steps, once a step"
    return Finding(right, told, f"{moved:,} bytes by {' and '.join(ops) or 'nothing'}", answer.rank)


def _not_one_a_parameter(evidence: Evidence, answer: RankAnswer) -> Finding:
    parameters = len(list(net_of(evidence.case).parameters()))
    counts = [len(step) for step in _calls_of_steps(acts_of(answer), evidence.case.params["steps"])]
    told = f"from {SEVERAL} to {parameters // 2} all_reduces in each step for {parameters} parameters"
    right = all(SEVERAL <= count <= parameters // 2 for count in counts)
    return Finding(right, told, f"{', '.join(map(str, counts))} in one step after another", answer.rank)


def hidden_bytes(acts: Sequence[Act]) -> int:
    """Bytes of the calls between whose start and wait something was multiplied."""
    return sum(hidden for _, hidden in _bytes_of_calls(acts))


def _bytes_of_calls(acts: Sequence[Act]) -> Iterator[tuple[int, int]]:
    """Of each call but barriers its bytes, and them again if something was multiplied between its start and
    its wait. Who waits at a barrier stands still for every call before it.
    """
    barriers = {act.number for act in acts if act.op == "barrier"}
    for position, act in enumerate(acts):
        if act.kind == "start" and act.number not in barriers:
            ends = {act.number, *barriers}
            rest = range(position, len(acts))
            until = next((i for i in rest if acts[i].kind == "wait" and acts[i].number in ends), None)
            yield act.num_bytes, act.num_bytes * any(a.flops for a in acts[position:until])


def _calls_of_steps(acts: Sequence[Act], steps: int) -> list[list[tuple[int, int]]]:
    """Of each step its calls, as `_bytes_of_calls` has them; all steps send the same."""
    calls = list(_bytes_of_calls(acts))
    whole, sent = sum(num_bytes for num_bytes, _ in calls), 0
    found: list[list[tuple[int, int]]] = [[] for _ in range(steps)]
    for num_bytes, hidden in calls:
        found[min(sent * steps // max(whole, 1), steps - 1)].append((num_bytes, hidden))
        sent += num_bytes
    return found


def _behind_backward(evidence: Evidence, answer: RankAnswer) -> Finding:
    calls = _calls_of_steps(acts_of(answer), evidence.case.params["steps"])
    of_steps = [(sum(whole for whole, _ in step), sum(hidden for _, hidden in step)) for step in calls]
    exposed = [
        step for step, (whole, hidden) in enumerate(of_steps) if not hidden >= HIDDEN_SHARE * whole > 0
    ]
    step = exposed[0] if exposed else 0
    whole, hidden = of_steps[step]
    told = (
        f"in each step at least {HIDDEN_SHARE:.0%} of the bytes under way while a layer's backward computes"
    )
    seen = f"{hidden:,} of {whole:,} bytes in step {step}"
    return Finding(not exposed, told, seen, answer.rank)


def _nothing_besides(evidence: Evidence, answer: RankAnswer) -> Finding:
    """What is computed only to have something behind a call costs time, and hides nothing."""
    widths, rows = evidence.case.params["widths"], evidence.case.params["rows"]
    layers = [2 * rows * inner * outer for inner, outer in pairwise(widths)]
    whole = evidence.case.params["steps"] * (
        3 * sum(layers) - layers[0]
    )  # nobody asks for the input's gradient
    done = sum(act.flops for act in acts_of(answer))
    told = f"products of {whole:,} operations: those of forward and backward"
    return Finding(done <= whole, told, f"{done:,}", answer.rank)


COUNTED = every(on_each(all_from_python), on_each(_not_one_a_parameter), on_each(_whole_gradients))
HIDDEN = every(on_each(_behind_backward), on_each(_nothing_besides), on_each(all_waited_for))


def _also(judge: Judge) -> dict[str, Judge]:
    """The same of each call in cases that are about the numbers, or another group."""
    return {
        "values": of_each_call(judge, lambda case: {TRAINING: {}}),
        "subgroup": of_each_call(judge, lambda case: {recording: {"steps": 1} for recording in CALLS}),
    }


TRAIN = Run(_train, _inputs, _hand, OneProcess)

EXERCISE = Exercise(
    "10.slow-program-1",
    "Slow program 1",
    ("program_1",),
    {
        "values": TRAIN,
        "alone": TRAIN,
        "subgroup": Run(_train_twice, _inputs, _hand, OneProcess),
        "watched": Run(_watch, _inputs, _hand, OneProcess),
    },
    _cases,
    (
        Property(
            "numbers-kept",
            "numbers",
            2,
            "The weights are those of one process with all rows.",
            "a bucket was not waited for before the step, or the sum was not divided",
            {"values": _trained, "alone": _trained},
        ),
        Property(
            "bucket-count",
            "mechanism",
            2,
            "Several buckets, and not one a parameter; the gradients' bytes once.",
            "one bucket for all cannot start before backward is over; one a parameter pays a latency each",
            {"watched": every(COUNTED, on_each(_trained_alike))},
            also=_also(COUNTED),
        ),
        Property(
            "overlap",
            "mechanism",
            3,
            "In each step half of the bytes are under way while backward computes, and all are waited for.",
            "a bucket with parameters of the last and of the first layer is complete at the end of backward,"
            " and so is one of the first few layers, where most of the bytes are theirs",
            {"watched": every(HIDDEN, goes_on, on_each(_trained_alike))},
            also=_also(HIDDEN),
        ),
        Property(
            "subgroup",
            "robustness",
            1,
            "It works in a group that is not the whole job, with batches that can be gone through once, or"
            " none, on a model that comes with gradients, and again on the same model, which was trained in"
            " another group before.",
            "the default group was used, the batches were counted before the first step, gradients were added"
            " to those that were there, or hooks or what was made for another group were left with the model",
            {"subgroup": every(_trained, stays_in_group, on_each(leaves_no_hook), on_each(no_hook_is_left))},
        ),
    ),
    forbids=("torch.nn.parallel.DistributedDataParallel",),
)
