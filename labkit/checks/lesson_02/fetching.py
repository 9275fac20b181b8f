"""What an offloaded model may hold on its device, and when weights must be on their way there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from labkit import devices
from labkit.checks.case import Case, Inputs, RankAnswer
from labkit.checks.compare import difference
from labkit.checks.exercise import Finding, Judge
from labkit.checks.lesson_02.device_time import HOST_LINK
from labkit.checks.lesson_02.plain_model import (
    TOLD,
    BesidePlain,
    same_random_numbers,
)
from labkit.checks.lesson_02.small_layers import (
    activation_bytes,
    build_layers,
    drops,
    tensor_bytes,
)
from labkit.checks.shared.beside import PlainSeat, Seat, State

LARGE = 512  # times the rows of x, whose activations are then larger than what may lie beside the layers
WATCHED_PASSES = {"inferred": "inference", "output": "forward", "grad": "backward", "large": "a large batch"}
PHASES = ("inference", "forward", "backward")  # what is watched of a model
BESIDE = 0.8  # of the time that copies take: the host needs some to ask for them


class Watched(BesidePlain):
    """A case's answers, and the bytes its layers need."""

    @cached_property
    def in_its_mode(self) -> State:
        """What the plain model gives where a model is watched, by name, in the mode of the answers: another
        than that of the case is no mistake of what is held, and when it comes.
        """
        seen, evaluating = self.answers[0].tensors.get("inferred"), self.case.params.get("evaluating", False)
        own, other = self._watched(evaluating), self._watched(not evaluating)
        in_other = seen is not None and difference(other["inferred"].float(), seen.float()) is None
        return other if in_other else own

    def _watched(self, evaluating: bool) -> State:
        seat, model = PlainSeat(), nn.Sequential(*build_layers(self.case, self.inputs))
        model.train(not evaluating)
        with same_random_numbers():
            out = model(self.inputs["x"])
        seat.answer("inferred", out)
        seat.answer("output", out)
        out.backward(self.inputs["grad_output"])
        answer_gradients(seat, model, "grad")
        answer_large_batch(seat, model, self.inputs)
        answer_gradients(seat, model, "large")
        return seat.tensors

    @cached_property
    def sizes(self) -> Sizes:
        return Sizes(self.case, self.inputs)


class Sizes:
    """Bytes of a case's layers, as a device counts them."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        layers = build_layers(case, inputs)
        self.resident: int = case.params["resident"]
        trained = [[p for p in layer.parameters() if p.requires_grad] for layer in layers]
        self.trained = [sum(p.numel() * p.element_size() for p in parameters) for parameters in trained]
        self.plain = [sum(tensor_bytes(layer, parameters_only=True)) for layer in layers]
        self.layers = [sum(map(devices.rounded, tensor_bytes(layer))) for layer in layers]
        self.gradients = [
            sum(map(devices.rounded, tensor_bytes(layer, parameters_only=True))) for layer in layers
        ]
        self.buffers = sum(sum(tensor_bytes(layer)) for layer in layers) - sum(self.plain)
        self.of_buffers = sum(self.layers) - sum(self.gradients)  # all may stay on the device
        self.activations = activation_bytes(case, inputs)
        self.x = self.activations[0]
        self.at_rest = sum(self.layers[: self.resident])
        offloaded = self.layers[self.resident :]
        self.pair = 2 * max(offloaded) if len(offloaded) > 1 else sum(offloaded)  # as two buffers hold them
        flowing = list(map(devices.rounded, self.activations))  # much beside layers that are narrow
        masks = sum(flowing[1:]) if any(map(drops, layers)) else 0
        self.slack = max(offloaded, default=0) // 2 + sum(flowing) + masks

    @property
    def last(self) -> int:
        """Bytes of the last layer that has weights."""
        return next((size for size in reversed(self.plain) if size), 0)

    def offloaded(self, upto: int | None = None) -> int:
        """Bytes of the weights of the offloaded layers, up to layer `upto` where one is given."""
        stop = len(self.plain) if upto is None else upto + 1
        return sum(self.plain[self.resident : stop])


def answer_large_batch(seat: Seat, model: nn.Module, inputs: Inputs) -> None:
    """Forward and backward of LARGE times the rows of x. Answers: large, the mean of all rows."""
    x = inputs["x"]
    model.zero_grad()
    with same_random_numbers():
        out = model(x.repeat(LARGE, *[1] * (x.ndim - 1)))
    out.sum().backward()
    seat.answer("large", out.detach().mean(0))


def answer_gradients(seat: Seat, model: nn.Module, prefix: str) -> None:
    """Answers: PREFIX.N, the gradients (N counts parameters in order)."""
    for number, parameter in enumerate(model.parameters()):
        seat.answer(f"{prefix}.{number}", parameter.grad)


def computes(*kinds: str) -> Judge:
    """Where the model was watched, it gave the plain model's numbers of these kinds, in single precision at
    least: whether a layer works with all digits is no question of what it holds.
    """

    def judge(evidence: Watched) -> Iterator[Finding]:
        for name, expected in evidence.in_its_mode.items():
            kind, _, number = name.partition(".")
            if kind in kinds:
                what = f"the gradient of parameter {number}" if number else "the output"
                told = f"{WATCHED_PASSES[kind]}: {what}, as the model on one device has it"
                seen = evidence.answers[0].tensors.get(name)
                wrong = difference(expected.float(), None if seen is None else seen.float())
                yield Finding(wrong is None, told, wrong or "")

    return judge


def finite(*kinds: str) -> Judge:
    """What came back of these kinds is made of numbers: a copy that nobody waited for has none."""

    def judge(evidence: Watched) -> Iterator[Finding]:
        for name, seen in evidence.answers[0].tensors.items():
            kind, _, number = name.partition(".")
            if kind in kinds:
                wrong = int((~torch.isfinite(seen)).sum())
                told = f"{TOLD[kind].format(number=number)}: finite, as weights that have arrived give it"
                yield Finding(not wrong, told, f"{wrong} of {seen.numel()} values not finite")

    return judge


def stays_in_bounds(evidence: Watched) -> Iterator[Finding]:
    """Resident layers are there all the time; beside them there is never more than the bound allows."""
    sizes, facts = evidence.sizes, evidence.answers[0].facts
    at_rest, spare = sizes.at_rest, sizes.pair + sizes.slack + sizes.of_buffers
    resident_gradients = sum(sizes.gradients[: sizes.resident])
    gradient = max(sizes.gradients[sizes.resident :], default=0)
    busiest = spare + max(gradient, resident_gradients)  # two buffers may outlive the offloaded layers
    moments = {
        "held at rest": ("the resident layers", spare),
        "held after inference": ("the resident layers", spare),
        "inference peak": ("the resident layers, the one at work and the one on its way", spare),
        "training peak": (
            "the same, and the gradients of one offloaded layer or of the resident ones",
            busiest,
        ),
        "held after training": ("the resident layers and their gradients", resident_gradients + spare),
        "held after a large batch": ("the same, and no activations", resident_gradients + spare),
    }
    for moment, (what, beside) in moments.items():
        seen, most = facts[moment], at_rest + beside
        told = f"{moment}: {at_rest:,} to {most:,} bytes ({what})"
        yield Finding(at_rest <= seen <= most, told, f"{moment}: {seen:,} bytes")


def waits_in_pinned_memory(evidence: Watched) -> Iterator[Finding]:
    """The weights of offloaded layers, frozen ones too."""
    waiting = evidence.answers[0].facts["pinned"][evidence.sizes.resident :]
    told = "the weights of each offloaded layer wait in pinned memory"
    yield Finding(all(waiting), told, f"{waiting.count(False)} of {len(waiting)} layers do not")


def fetches_once(evidence: Watched) -> Iterator[Finding]:
    """Offloaded weights come to the device once a pass, and their gradients leave it once."""
    sizes, answer = evidence.sizes, evidence.answers[0]
    once = sizes.offloaded()
    for phase, extra in (("inference", sizes.x), ("forward", sizes.x)):
        seen = _to_device(answer, phase) - extra
        told = f"{phase}: the weights of each offloaded layer copied to the device once, {once:,} bytes"
        yield Finding(once <= seen <= once + sizes.buffers, told, f"{seen:,} bytes")
    seen = _to_device(answer, "backward")
    told = f"backward: the weights copied to the device at most once more, {once:,} bytes"
    yield Finding(seen <= once + sizes.buffers, told, f"{seen:,} bytes")
    back = sum(size for a, _, size, *_ in answer.facts["backward"] if a != "cpu")
    trained = sum(sizes.trained[sizes.resident :])
    told = f"backward: the gradients of the offloaded layers copied to the host once, {trained:,} bytes"
    yield Finding(back == trained, told, f"{back:,} bytes")


def _to_device(answer: RankAnswer, phase: str) -> int:
    return _to_device_so_far(answer, phase)[-1]


def _to_device_so_far(answer: RankAnswer, phase: str) -> list[int]:
    """Bytes that the first copies of a phase bring to the device: of none, of one, and so on to all."""
    return list(accumulate((size * (b != "cpu") for _, b, size, *_ in answer.facts[phase]), initial=0))


def fetches_ahead(evidence: Watched) -> Iterator[Finding]:
    """When a layer starts, the next one's weights are on their way, beside the work: those of the first
    offloaded layer when the last resident one starts.
    """
    yield from _asks_ahead(evidence)
    for phase in PHASES:
        yield _beside_in_time(evidence.sizes, evidence.answers[0], phase)


def fetches_ahead_too(evidence: Watched) -> Iterator[Finding]:
    """The same in other circumstances, timed in training alone: who waits for no copy is through with
    inference before the copies are, and that has its own price.
    """
    yield from _asks_ahead(evidence)
    for phase in PHASES[1:]:
        yield _beside_in_time(evidence.sizes, evidence.answers[0], phase)


def _asks_ahead(evidence: Watched) -> Iterator[Finding]:
    sizes, answer = evidence.sizes, evidence.answers[0]
    last = len(sizes.plain) - 1
    for phase in ("inference", "forward"):
        so_far = _to_device_so_far(answer, phase)
        for index, count in answer.facts[f"{phase} starts"]:
            if not sizes.resident - 1 <= index < last:
                continue
            asked = so_far[count] - sizes.x
            due = sizes.offloaded(upto=index + 1)
            when, which = f"{phase}: when layer {index} starts", f"layer {index + 1}"
            told = f"{when}, the weights of {which} are on their way: {due:,} bytes"
            yield Finding(asked >= due, told, f"{asked:,} bytes asked for by then")
        ran = [index for index, _ in answer.facts[f"{phase} starts"]]
        told = f"{phase}: each layer run once, in order"
        yield Finding(ran == list(range(last + 1)), told, f"layers {ran} run")
    yield from _fetches_ahead_in_backward(sizes, answer)
    yield from travels_aside(evidence)


def travels_aside(evidence: Watched) -> Iterator[Finding]:
    """All that comes to the device comes from pinned memory, on a stream of its own, and nobody waits."""
    for phase in PHASES:
        yield from _copied_beside_the_work(evidence.sizes, evidence.answers[0], phase)


def fetches_aside_or_ahead(evidence: Watched) -> Iterator[Finding]:
    """Ahead of time where all layers have weights. Who runs one without any as it is, and not again in
    backward, has no work there to fetch the layer before it beside: then only how copies are made counts.
    """
    judge = fetches_ahead_too if all(evidence.sizes.plain) else travels_aside
    yield from judge(evidence)


def _fetches_ahead_in_backward(sizes: Sizes, answer: RankAnswer) -> Iterator[Finding]:
    """When a layer's gradient leaves, the weights of the layer before it are on their way. Those of the last
    layers may be there from the forward pass. Which of the bytes are buffers cannot be told: all of them may
    be, of layers still to come.
    """
    there = sizes.offloaded() - _to_device(answer, "backward")
    so_far, left = _to_device_so_far(answer, "backward"), 0
    for count, (source, _, size, *_) in enumerate(answer.facts["backward"]):
        if source == "cpu":
            continue
        left += size
        index = next(n for n in reversed(range(len(sizes.plain))) if sum(sizes.trained[n:]) >= left)
        if index <= sizes.resident:
            return
        asked = there + so_far[count]
        due = sum(sizes.plain[index - 1 :]) - sizes.buffers
        told = f"backward: before the gradient of layer {index} leaves, layer {index - 1} is on its way"
        yield Finding(asked >= due, f"{told}: {due:,} bytes", f"{asked:,} bytes asked for by then")


def _as_weights_come(copy: Sequence[Any]) -> tuple[bool, ...]:
    *_, stream, non_blocking, is_pinned = copy
    return stream != 0 and bool(non_blocking), bool(is_pinned)


def _copied_beside_the_work(sizes: Sizes, answer: RankAnswer, phase: str) -> Iterator[Finding]:
    weights = [copy for copy in answer.facts[phase] if copy[1] != "cpu"]
    if phase != "backward":  # the batch comes as it likes, before or after a layer of its size
        weights.remove(min((copy for copy in weights if copy[2] == sizes.x), key=_as_weights_come))
    aside = all(stream != 0 and non_blocking for *_, stream, non_blocking, _ in weights)
    told = f"{phase}: weights copied with non_blocking=True on a stream of their own"
    yield Finding(aside, told, "copies on the default stream, or copies the host waits for")
    pinned = sum(size for _, _, size, *_, is_pinned in weights if is_pinned)
    told = f"{phase}: all {sum(copy[2] for copy in weights):,} bytes copied from pinned memory"
    yield Finding(all(is_pinned for *_, is_pinned in weights), told, f"{pinned:,} bytes")


def _beside_in_time(sizes: Sizes, answer: RankAnswer, phase: str) -> Finding:
    """On the device's timeline the copies go on while layers work. The first layer of a pass may have to wait
    for its own; in backward it may be there, and the last one, of a model whose input asks for no gradient,
    may need no weights.
    """
    if phase == "backward":
        ahead = max(0, _to_device(answer, phase) - sizes.last)
    else:
        ahead = sizes.offloaded() - (0 if sizes.resident else sizes.plain[0])
    due, seen = BESIDE * ahead / HOST_LINK, answer.facts[f"{phase} beside"]
    told = f"{phase}: on the device's timeline, copies go on beside its work for {due:.1f} seconds or more"
    return Finding(seen >= due, told, f"{seen:.1f} seconds: the device or the host waited for them first")
