"""A model whose layers wait on the host: what its check does with it, and how that is judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from labkit import devices
from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.exercise import Property
from labkit.checks.lesson_02.layerwise import equal, refusal
from labkit.checks.lesson_02.small_layers import (
    SMALL,
    Dense,
    Log,
    Specs,
    activation_bytes,
    build_layers,
    draw_layer_inputs,
    tensor_bytes,
    train,
)
from labkit.checks.old_form import Exercise, Finding
from labkit.checks.rank import Rank

BYTES_EACH = 2**26


def use_offloaded_model(rank: Rank) -> None:
    """Build the student's model on one stand-in device, run it, train it, and report."""
    late = rank.params["kind"] == "late"
    with devices.stand_in(1, BYTES_EACH, late_copies=late) as gpu:
        layers = build_layers(rank.case, rank.inputs)
        if rank.params["kind"] == "refusal":
            with rank.expect_error("refusal"):
                rank.student.OffloadedModel(layers, torch.device("cuda:0"), rank.params["resident"])
            return
        model = rank.student.OffloadedModel(layers, torch.device("cuda:0"), rank.params["resident"])
        rank.fact("held at rest", gpu.allocated(0))
        if rank.params["kind"] == "watched":
            _watch(rank, model, layers, gpu)
        else:
            _compare(rank, model)


def _compare(rank: Rank, model: nn.Module) -> None:
    """Report every value the plain model has too."""
    x = rank.inputs["x"].clone().requires_grad_()
    out = model(x)
    rank.fact("output device", str(out.device))
    rank.answer("output", out)
    with rank.attempt("gradients"):
        out.backward(rank.inputs["grad_output"].to(out.device))
        rank.answer("input_grad", x.grad)
        for number, parameter in enumerate(model.parameters()):
            rank.answer(f"grad.{number}", parameter.grad)
    with rank.attempt("trained-weights"):
        train(model, rank.inputs)
        for number, parameter in enumerate(model.parameters()):
            rank.answer(f"trained.{number}", parameter)


def _watch(rank: Rank, model: nn.Module, layers: Sequence[nn.Module], gpu: devices.StandIns) -> None:
    """Report memory and copies: of a forward pass for inference, and of a training step."""
    log = Log()
    for index, layer in enumerate(layers):
        assert isinstance(layer, Dense)
        layer.on_start = _note(log, gpu, index)
    gpu.reset_peaks()
    start = len(gpu.transfers)
    with torch.no_grad():
        out = model(rank.inputs["x"].clone())
    rank.fact("inference peak", gpu.peak(0))
    rank.fact("starts", [[index, count - start] for index, count in log.entries])
    rank.fact("inference", _copies(gpu.transfers[start:]))
    rank.answer("output", out)
    del out
    rank.fact("held after inference", gpu.allocated(0))
    gpu.reset_peaks()
    _watch_training(rank, model, gpu)


def _watch_training(rank: Rank, model: nn.Module, gpu: devices.StandIns) -> None:
    with gpu.recording() as forward:
        out = model(rank.inputs["x"].clone())
    grad = rank.inputs["grad_output"].to(out.device)
    with gpu.recording() as backward:
        out.backward(grad)
    rank.fact("training peak", gpu.peak(0))
    rank.fact("forward", _copies(forward))
    rank.fact("backward", _copies(backward))
    del out, grad
    rank.fact("held after training", gpu.allocated(0))


def _note(log: Log, gpu: devices.StandIns, index: int) -> object:
    return lambda: log.entries.append((index, len(gpu.transfers)))


def _copies(transfers: Sequence[devices.Transfer]) -> list[JSON]:
    return [[t.source, t.destination, t.num_bytes, t.stream, t.non_blocking] for t in transfers]


def judge_offloaded_model(case: Case, inputs: Inputs, answers: list[RankAnswer]) -> Iterator[Finding]:
    """Hold the report against the plain model, and against the bytes its layers need."""
    answer = answers[0]
    match case.params["kind"]:
        case "values":
            yield from equal("forward-values", case, inputs, answer, "output")
            device = answer.facts["output device"]
            yield Finding("forward-values", device == "cuda:0", "the output on cuda:0", f"on {device}")
            yield from equal("gradients", case, inputs, answer, "input_grad", "grad")
            yield from equal("trained-weights", case, inputs, answer, "trained")
        case "late":
            yield from equal("waits-for-copies", case, inputs, answer, "output", "grad", "trained")
        case "buffers":
            yield from equal("buffers", case, inputs, answer, "output", "grad", "trained")
        case "extreme":
            yield from equal("all-or-none", case, inputs, answer, "output", "grad", "trained")
        case "watched":
            sizes = Sizes(case, inputs)
            yield from _memory(sizes, answer)
            yield from _fetches(sizes, answer)
            yield from _prefetches(sizes, answer)
        case "refusal":
            yield refusal("wrong-arguments", answer.facts["refusal"], case.params["names"])


class Sizes:
    """Bytes of a case's layers, as a device counts them."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        layers = build_layers(case, inputs)
        self.resident: int = case.params["resident"]
        self.plain = [sum(tensor_bytes(layer, parameters_only=True)) for layer in layers]
        self.layers = [sum(map(devices.rounded, tensor_bytes(layer))) for layer in layers]
        self.gradients = [
            sum(map(devices.rounded, tensor_bytes(layer, parameters_only=True))) for layer in layers
        ]
        self.buffers = sum(sum(tensor_bytes(layer)) for layer in layers) - sum(self.plain)
        self.activations = activation_bytes(case, inputs)
        self.x = self.activations[0]
        self.at_rest = sum(self.layers[: self.resident])
        offloaded = self.layers[self.resident :]
        self.pair = max([a + b for a, b in pairwise(offloaded)], default=sum(offloaded))
        self.slack = max(offloaded, default=0) // 2

    def offloaded(self, upto: int | None = None) -> int:
        """Bytes of the weights of the offloaded layers, up to layer `upto` where one is given."""
        stop = len(self.plain) if upto is None else upto + 1
        return sum(self.plain[self.resident : stop])


def _memory(sizes: Sizes, answer: RankAnswer) -> Iterator[Finding]:
    """Resident layers are there all the time; beside them there is never more than the bound allows."""
    facts, at_rest, spare = answer.facts, sizes.at_rest, sizes.pair + sizes.slack
    resident_gradients = sum(sizes.gradients[: sizes.resident])
    gradient = max(sizes.gradients[sizes.resident :], default=0)
    busiest = max(spare + gradient, sizes.slack + resident_gradients)  # among offloaded layers, or after them
    moments = {
        "held at rest": ("the resident layers", spare),
        "held after inference": ("the resident layers", spare),
        "inference peak": ("the resident layers, the one at work and the one on its way", spare),
        "training peak": (
            "the same, and the gradients of one offloaded layer or of the resident ones",
            busiest,
        ),
        "held after training": ("the resident layers and their gradients", resident_gradients + spare),
    }
    for moment, (what, beside) in moments.items():
        seen, most = facts[moment], at_rest + beside
        told = f"{moment}: {at_rest:,} to {most:,} bytes ({what})"
        yield Finding("peak-memory", at_rest <= seen <= most, told, f"{moment}: {seen:,} bytes")


def _fetches(sizes: Sizes, answer: RankAnswer) -> Iterator[Finding]:
    once = sizes.offloaded()
    for phase, extra in (("inference", sizes.x), ("forward", sizes.x)):
        seen = _to_device(answer, phase) - extra
        told = f"{phase}: the weights of each offloaded layer copied to the device once, {once:,} bytes"
        yield Finding("weights-fetched", once <= seen <= once + sizes.buffers, told, f"{seen:,} bytes")
    seen = _to_device(answer, "backward")
    told = f"backward: the weights copied to the device at most once more, {once:,} bytes"
    yield Finding("weights-fetched", seen <= once + sizes.buffers, told, f"{seen:,} bytes")
    back = sum(size for a, _, size, *_ in answer.facts["backward"] if a == "cuda:0")
    told = f"backward: the gradients of the offloaded layers copied to the host once, {once:,} bytes"
    yield Finding("weights-fetched", back == once, told, f"{back:,} bytes")


def _to_device(answer: RankAnswer, phase: str, count: int | None = None) -> int:
    return sum(size for _, b, size, *_ in answer.facts[phase][:count] if b == "cuda:0")


def _prefetches(sizes: Sizes, answer: RankAnswer) -> Iterator[Finding]:
    name, last = "prefetch", len(sizes.plain) - 1
    for index, count in answer.facts["starts"]:
        if not sizes.resident <= index < last:
            continue
        asked = _to_device(answer, "inference", count) - sizes.x
        due = sizes.offloaded(upto=index + 1)
        told = f"when layer {index} starts, the weights of layer {index + 1} are on their way: {due:,} bytes"
        yield Finding(name, asked >= due, told, f"{asked:,} bytes asked for by then")
    ran = [index for index, _ in answer.facts["starts"]]
    yield Finding(name, ran == list(range(last + 1)), "each layer run once, in order", f"layers {ran} run")
    weights = [copy for copy in answer.facts["inference"] if copy[1] == "cuda:0"]
    weights.remove(next(copy for copy in weights if copy[2] == sizes.x))
    aside = all(stream != 0 and non_blocking for _, _, _, stream, non_blocking in weights)
    told = "weights copied with non_blocking=True on a stream of their own"
    yield Finding(name, aside, told, "copies on the default stream, or copies the host waits for")


# ---- the exercise


def offload_case(
    name: str, kind: str, layers: Specs, resident: int, lead: list[int], seed: int, **params: Any
) -> Case:
    """`layers` on one device, of which the first `resident` stay there."""
    about = {
        "values": ("forward-values", "gradients", "trained-weights"),
        "watched": ("peak-memory", "weights-fetched", "prefetch"),
        "late": ("waits-for-copies",),
        "buffers": ("buffers",),
        "extreme": ("all-or-none",),
        "refusal": ("wrong-arguments",),
    }[kind]
    given = {"kind": kind, "layers": layers, "resident": resident, "lead": lead, **params}
    return Case(name, 1, given, seed, about)


def wide_layers(width: int, num_layers: int) -> Specs:
    """Layers whose weights are much larger than what flows through them."""
    return [["dense", width, width] for _ in range(num_layers)]


def with_buffers(layers: Specs) -> Specs:
    """The same layers, with a constant buffer in each that is dense."""
    return [["scaled", *sizes] if kind == "dense" else [kind, *sizes] for kind, *sizes in layers]


def _offload_cases(seed: int) -> list[Case]:
    wide = wide_layers(64, 6)
    return [
        offload_case("2 of 5 resident", "values", SMALL, 2, [3], seed),
        offload_case("1 of 5 resident", "values", SMALL, 1, [2, 3], seed),
        offload_case("memory, 2 of 6 resident", "watched", wide, 2, [1], seed),
        offload_case("memory, none of 6 resident", "watched", wide, 0, [1], seed),
        offload_case("memory, 5 of 6 resident", "watched", wide, 5, [1], seed),
        offload_case("copies that take their time", "late", SMALL, 1, [3], seed),
        offload_case("constant buffers", "buffers", with_buffers(SMALL), 2, [3], seed),
        offload_case("none resident", "extreme", SMALL, 0, [3], seed),
        offload_case("all resident", "extreme", SMALL, 5, [3], seed),
        offload_case("9 of 5 resident", "refusal", SMALL, 9, [3], seed, names=["9", "5"]),
        offload_case("-1 of 5 resident", "refusal", SMALL, -1, [3], seed, names=["-1", "5"]),
    ]


OFFLOADED = Exercise(
    "02.offloaded-model",
    "Weights that come just in time",
    ("OffloadedModel",),
    (
        Property(
            "forward-values",
            "numbers",
            2,
            "The output is that of the plain model, on the device.",
            "an offloaded layer was left out, or run with the wrong layer's weights",
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "Every parameter, on the host or on the device, gets the plain model's gradient.",
            "the copy on the device has the gradient, and the parameter on the host never hears of it",
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            "After two steps of SGD every weight is what it would be in the plain model.",
            "copies fetched before the optimizer's step were used after it",
        ),
        Property(
            "peak-memory",
            "mechanism",
            3,
            "The device never holds more than the resident layers, the layer at work and the one on its way.",
            "autograd keeps every layer's weights for backward, or the copies are never dropped",
        ),
        Property(
            "weights-fetched",
            "mechanism",
            2,
            "Offloaded weights come to the device once a pass, and their gradients leave it once.",
            "the layers run on the CPU, or all layers are fetched whether they are resident or not",
        ),
        Property(
            "prefetch",
            "mechanism",
            2,
            "While a layer works, the weights of the next are on their way, on a stream of their own.",
            "each layer fetches its own weights when it starts, or the copy is not non_blocking",
        ),
        Property(
            "waits-for-copies",
            "mechanism",
            2,
            "A layer starts when its weights have arrived, and not before.",
            "no wait_stream or wait_event between the stream of the copies and the one that computes",
        ),
        Property(
            "buffers",
            "robustness",
            1,
            "Constant buffers of offloaded layers are on the device when their layer works.",
            "only parameters are fetched",
        ),
        Property(
            "all-or-none",
            "robustness",
            1,
            "No layer resident, and all of them resident, work too.",
            "an index that assumes there is a layer to prefetch",
        ),
        Property(
            "wrong-arguments",
            "robustness",
            1,
            "A number of resident layers that cannot be is refused with a ValueError that names it.",
            "a negative number is a slice from the end",
        ),
    ),
    _offload_cases,
    draw_layer_inputs,
    use_offloaded_model,
    judge_offloaded_model,
)
