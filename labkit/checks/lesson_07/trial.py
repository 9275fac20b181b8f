"""Puts a module that is cut over ranks through its paces, and judges it by the whole module in stock PyTorch.

A `Trial` says how a whole module is made, how the student cuts it, and where each number should then be. In a
case's inputs "full.NAME" is a parameter of the whole module; the others carry the index of the group they are
for as their first dimension. With the parameter `sequence_parallel`, what a rank is handed, returns and is
given as gradient are its own tokens, cut along dim 1; ids are always whole.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.lesson_07.cuts import State
from labkit.checks.old_form import Finding
from labkit.checks.rank import Rank
from labkit.checks.shared.places import Place, enter_group, groups_of, place_of
from labkit.checks.shared.sharded_evidence import SLACK_BYTES, compared, finding, nbytes, within_group
from labkit.checks.shared.sharded_layer import charged, drawn, full_weights, storages

LEARNING_RATE = 0.1
SCALE = 0.02  # of the sum: two steps should change weights, not blow them up
STEPS = 2


@dataclass(frozen=True)
class Trial:
    """How a module is made whole, cut by the student, fed and run.

    plain: the case's whole module, in stock PyTorch, with the case's dtype.
    build: (rank, whole module, group) -> the student's part.
    cut: (whole state, rank, size) -> that rank's state.
    run: (module, whole or cut; arguments) -> what it gives.
    arguments: names of the inputs handed over. shapes: (case) -> shape of each without the group's dimension;
        of "ids" and "targets" the numbers are below the case's `vocabulary`.
    """

    plain: Callable[[Case], nn.Module]
    build: Callable[[Rank, nn.Module, dist.ProcessGroup], nn.Module]
    cut: Callable[[Mapping[str, Tensor], int, int], State]
    run: Callable[[nn.Module, Sequence[Tensor]], Tensor]
    arguments: tuple[str, ...]
    shapes: Callable[[Case], dict[str, tuple[int, ...]]]


def trial_inputs(trial: Trial) -> Callable[[Case, torch.Generator], Inputs]:
    """Parameters, and for each group its own arguments, gradients and targets of several steps."""

    def inputs(case: Case, generator: torch.Generator) -> Inputs:
        found: Inputs = {}
        for name, tensor in trial.plain(case).named_parameters():
            found[f"full.{name}"] = drawn(case, generator, *tensor.shape) / tensor.shape[-1] ** 0.5
        for name, shape in trial.shapes(case).items():
            lead = (len(groups_of(case)), *shape)
            for each in (name, *(f"{name}{step}" for step in range(STEPS))):
                if name in ("ids", "targets"):
                    found[each] = torch.randint(case.params["vocabulary"], lead, generator=generator)
                else:
                    found[each] = drawn(case, generator, *lead)
        return found

    return inputs


def with_weights(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """`module`, with copies of `state` as its parameters; a parameter with two names has one entry."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(state[name])
    return module


def whole_on(rank: Rank, trial: Trial) -> nn.Module:
    """The case's whole module with the case's weights, on this rank's device."""
    return with_weights(trial.plain(rank.case).to(rank.device), full_weights(rank.inputs))


def is_cut(case: Case, tensor: Tensor) -> bool:
    """Whether a rank has only its own tokens of a tensor that is handed over or returned."""
    return bool(case.params.get("sequence_parallel")) and tensor.is_floating_point() and tensor.dim() > 1


def own_part(case: Case, tensor: Tensor, place: Place) -> Tensor:
    """What a rank of a group holds of the group's tensor."""
    return place.block(tensor, 1 if is_cut(case, tensor) else None)


def use_module(rank: Rank, trial: Trial) -> None:
    """Build the part, run it forward and backward, train it for two steps, and report everything.

    Answers: full.NAME (the whole module, as it was afterwards), output, input_grad, grad.NAME, trained.NAME.
    Facts: shapes, held_bytes.
    Recordings: forward, backward.
    """
    group, place, case = enter_group(rank), place_of(rank.case, rank.rank), rank.case
    before = storages()
    full = whole_on(rank, trial)
    part = trial.build(rank, full, group)
    for name, weight in full.named_parameters():
        rank.answer(f"full.{name}", weight)
    sent = sum(map(nbytes, full_weights(rank.inputs).values()))  # copies, alive until the job ends
    del full, weight
    rank.fact("held_bytes", _held_since(before) - sent)
    rank.fact("shapes", {name: list(p.shape) for name, p in part.named_parameters()})
    arguments = _handed(case, rank.inputs, trial, place, "")
    with rank.recording("forward"):
        out = trial.run(part, arguments)
    rank.answer("output", out)
    with rank.attempt(charged(case, "input-gradients")), rank.recording("backward"):
        _backward(case, rank.inputs, place, out)
    rank.answer("input_grad", arguments[0].grad if arguments[0].is_floating_point() else None)
    for name, parameter in part.named_parameters():
        rank.answer(f"grad.{name}", parameter.grad)
    with rank.attempt(charged(case, "trained-weights")):
        for step in range(STEPS):
            train_step(part, trial.run(part, _handed(case, rank.inputs, trial, place, str(step))))
    for name, parameter in part.named_parameters():
        rank.answer(f"trained.{name}", parameter)
    if case.params["kind"] == "round-trip":
        for name, tensor in part.to_full().items():  # type: ignore[operator]
            rank.answer(f"to_full.{name}", tensor)


def _held_since(before: Mapping[int, int]) -> int:
    """Bytes of tensors made since; states of random generators, which are uint8, are no part of a model."""
    tensors = (t for t in gc.get_objects() if type(t) is Tensor and t.dtype == torch.uint8)
    states = {t.untyped_storage().data_ptr() for t in tensors}
    return sum(n for key, n in storages().items() if key not in before and key not in states)


def _handed(case: Case, inputs: Inputs, trial: Trial, place: Place, step: str) -> list[Tensor]:
    """Copies of what a rank is handed; numbers ask for their gradient. A "layout" case hands over views."""
    found = []
    for name in trial.arguments:
        tensor = own_part(case, inputs[f"{name}{step}"][place.index], place).clone()
        if case.params["kind"] == "layout":
            tensor = tensor.transpose(0, 1).contiguous().transpose(0, 1)
        found.append(tensor.requires_grad_(tensor.is_floating_point()))
    return found


def _backward(case: Case, inputs: Inputs, place: Place, out: Tensor) -> None:
    if "grad_output" not in inputs:
        out.backward()
        return
    gradient = own_part(case, inputs["grad_output"][place.index], place).clone()
    if case.params["kind"] == "layout":
        out.backward(gradient.transpose(0, 1).contiguous().transpose(0, 1))
        return
    (out * gradient).sum().backward()  # out.backward(gradient) makes torch import for half a second


def train_step(module: nn.Module, out: Tensor) -> None:
    """Plain SGD on a sum of squares of what a module gave, or on that itself if it is one number.

    A sum, so that the parts of ranks that divide the tokens add up to the whole's.

    Written out, because creating a torch.optim optimizer imports torch's compiler: seconds on every rank.
    """
    module.zero_grad()
    (out if out.dim() == 0 else SCALE * out.square().sum()).backward()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(LEARNING_RATE * parameter.grad)


@dataclass(frozen=True)
class ModuleEvidence:
    """One case's answers, to be held against the whole module. Each method yields findings."""

    case: Case
    inputs: Inputs
    answers: Sequence[RankAnswer]
    trial: Trial

    @cached_property
    def references(self) -> list[dict[str, Tensor]]:
        """For each group: output, input_grad, and "grad.NAME", "trained.NAME" of the whole module."""
        return [self._reference(index) for index in range(len(groups_of(self.case)))]

    def _reference(self, index: int) -> dict[str, Tensor]:
        whole = Place(index, [0], 0)
        full = with_weights(self.trial.plain(self.case), full_weights(self.inputs))
        arguments = _handed(self.case, self.inputs, self.trial, whole, "")
        out = self.trial.run(full, arguments)
        _backward(self.case, self.inputs, whole, out)
        found = {"output": out.detach()}
        if arguments[0].grad is not None:
            found["input_grad"] = arguments[0].grad
        found |= {f"grad.{n}": p.grad.clone() for n, p in full.named_parameters() if p.grad is not None}
        for step in range(STEPS):
            train_step(
                full, self.trial.run(full, _handed(self.case, self.inputs, self.trial, whole, str(step)))
            )
        return found | {f"trained.{n}": p.detach() for n, p in full.named_parameters()}

    def usual(self) -> Iterator[Finding]:
        """For the kinds of case that modules share, by what the case is about; all numbers for others."""
        about = self.case.properties[0]
        match self.case.params["kind"]:
            case "values":
                yield from self.output(about)
                if "input_grad" in self.references[0]:
                    yield from self.input_gradients("input-gradients")
                yield from self.parameters("parameter-gradients", "grad")
                yield from self.parameters("trained-weights", "trained")
                yield from self.stored("stored-shards")
            case "subgroup":
                yield from self.output(about)
                yield from self.within_group(about)
            case "round-trip":
                yield from self.round_trip(about)
            case "refused":
                names = self.case.params["names"]
                yield from refused(about, self.answers, "refusal", ["ValueError"], *names)
            case _:
                yield from self.everything(about)

    def output(self, property_name: str) -> Iterator[Finding]:
        """What each rank gave is the whole module's output, or its own tokens of it."""
        yield from self._activation(property_name, "output", "the whole module's output")

    def input_gradients(self, property_name: str) -> Iterator[Finding]:
        """So is the gradient of what it was handed."""
        yield from self._activation(property_name, "input_grad", "the whole module's gradient of x")

    def _activation(self, property_name: str, name: str, what: str) -> Iterator[Finding]:
        for answer in self.answers:
            place = place_of(self.case, answer.rank)
            full = self.references[place.index][name]
            expected = own_part(self.case, full, place)
            told = f"this rank's tokens of {what}" if is_cut(self.case, full) else what
            yield compared(property_name, told, expected, answer, name)

    def parameters(self, property_name: str, *kinds: str) -> Iterator[Finding]:
        """Gradients ("grad") or trained values ("trained") are this rank's block of the whole module's."""
        for kind in kinds:
            for answer in self.answers:
                for name, expected in self._blocks(kind, answer.rank).items():
                    what = "gradient of" if kind == "grad" else f"value after {STEPS} steps of SGD of"
                    told = f"{what} {name}: this rank's block of the whole module's"
                    yield compared(property_name, told, expected, answer, f"{kind}.{name}")

    def _blocks(self, kind: str, rank: int) -> State:
        place = place_of(self.case, rank)
        prefix = f"{kind}."
        whole = self.references[place.index] if kind != "full" else self.inputs
        state = {n.removeprefix(prefix): t for n, t in whole.items() if n.startswith(prefix)}
        return self.trial.cut(state, place.position, place.size)

    def everything(self, property_name: str) -> Iterator[Finding]:
        """All numbers at once, for cases that are about something else."""
        yield from self.output(property_name)
        if "input_grad" in self.references[0]:
            yield from self.input_gradients(property_name)
        yield from self.parameters(property_name, "grad", "trained")

    def stored(self, property_name: str, slack: int = SLACK_BYTES) -> Iterator[Finding]:
        """Each rank holds its blocks and nothing more, and the module they came from is as it was."""
        full = full_weights(self.inputs)
        whole = sum(map(nbytes, full.values()))
        for answer in self.answers:
            blocks = self._blocks("full", answer.rank)
            shapes = {name: list(block.shape) for name, block in blocks.items()}
            seen = answer.facts["shapes"]
            wrong = sorted(name for name in shapes.keys() | seen.keys() if shapes.get(name) != seen.get(name))
            told = ", ".join(f"{name} {shapes.get(name, 'absent')}" for name in wrong) or "its blocks"
            was = ", ".join(f"{name} {seen.get(name, 'absent')}" for name in wrong)
            yield finding(property_name, not wrong, f"parameters {told}", was, answer)
            for name, tensor in full.items():
                told = f"{name} of the whole module as it was handed over"
                yield compared(property_name, told, tensor, answer, f"full.{name}")
            share, held = sum(map(nbytes, blocks.values())), answer.facts["held_bytes"]
            told = f"{share:,} bytes kept in memory by this rank's part (the whole: {whole:,})"
            within = share <= held <= share + slack
            yield finding(property_name, within, told, f"{held:,} bytes", answer)

    def round_trip(self, property_name: str) -> Iterator[Finding]:
        """After training, the part gives the state dict of the whole module trained as long."""
        for answer in self.answers:
            full = self.trial.plain(self.case)
            trained = self.references[place_of(self.case, answer.rank).index]
            with_weights(full, {n.removeprefix("trained."): t for n, t in trained.items() if "trained." in n})
            for name, expected in full.state_dict().items():
                told = f"to_full()[{name!r}]: the whole module's after {STEPS} steps"
                yield compared(property_name, told, expected, answer, f"to_full.{name}")
            names = {n.removeprefix("to_full.") for n in answer.tensors if n.startswith("to_full.")}
            right = names == set(full.state_dict())
            told = f"the names {sorted(full.state_dict())[:4]} ..."
            yield finding(property_name, right, told, f"{sorted(names)[:4]} ...", answer)

    def traffic(
        self, property_name: str, phase: str, *expected: tuple[str, int], ignore: int = 0
    ) -> Iterator[Finding]:
        """Each rank took part in these calls, in any order, and in all_reduces of up to `ignore` bytes."""
        for answer in self.answers:
            if place_of(self.case, answer.rank).size > 1:
                calls = calls_of(answer, phase)
                seen = Counter(c for c in calls if c[0] != "all_reduce" or c[1] > ignore)
                told, was = (f"{phase}: {_counted(n)}" for n in (Counter(expected), seen))
                yield finding(property_name, seen == Counter(expected), told, was, answer)

    def within_group(self, property_name: str) -> Iterator[Finding]:
        """Nothing was sent outside the group that was handed over."""
        for answer in self.answers:
            yield within_group(property_name, self.case, answer)


def calls_of(answer: RankAnswer, phase: str) -> list[tuple[str, int]]:
    """The operation and bytes of each call of a phase, each call once.

    On a busy machine torch's flight recorder may note a call so late that it seems to be one of C++'s beside
    the Python call, or the all_reduce that gloo makes of a reduce_scatter.
    """
    found = answer.collectives.get(phase, [])
    calls = [(c["op"], c["num_bytes"]) for c in found if c["source"] == "python"]
    twins = Counter(calls) + Counter(("all_reduce", n) for op, n in calls if op == "reduce_scatter")
    native = Counter((c["op"], c["num_bytes"]) for c in found if c["source"] != "python")
    return calls + list((native - twins).elements())


def _counted(calls: Counter[tuple[str, int]]) -> str:
    told = (f"{n} x {op} of {num_bytes:,} bytes" for (op, num_bytes), n in sorted(calls.items()))
    return ", ".join(told) or "no communication"


def refused(
    property_name: str, answers: Sequence[RankAnswer], fact: str, kinds: Sequence[str], *names: object
) -> Iterator[Finding]:
    """The rank met an error of one of these kinds, whose text holds these names."""
    for answer in answers:
        seen = answer.facts[fact]
        right = bool(set(kinds) & set(seen.get("kinds") or [])) and all(
            str(n) in seen["message"] for n in names
        )
        said = f"{seen['raised']}: {seen['message']}" if seen["raised"] else "no error"
        naming = f" that names {' and '.join(map(str, names))}" if names else ""
        yield finding(property_name, right, f"{' or '.join(kinds)}{naming}", said, answer)
