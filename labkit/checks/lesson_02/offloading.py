"""A model whose layers wait on the host: what its check does with it, and how that is judged."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from labkit import devices
from labkit.checks.case import JSON, Case, Inputs, RankAnswer
from labkit.checks.exercise import Exercise, Finding, Property, Run, every
from labkit.checks.lesson_02.layerwise import OnDevices
from labkit.checks.lesson_02.small_layers import (
    SMALL,
    BesidePlain,
    BesideTwoBatches,
    Dense,
    Log,
    Specs,
    activation_bytes,
    add_two_batches,
    build_layers,
    compare,
    draw_layer_inputs,
    equals,
    named,
    tensor_bytes,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import is_refused

BYTES_EACH = 2**26


@contextlib.contextmanager
def _model_on_device(
    rank: Rank, late: bool = False
) -> Iterator[tuple[nn.Module, Sequence[nn.Module], devices.StandIns]]:
    """The student's model on one stand-in device, its layers, and the device."""
    with devices.stand_in(1, BYTES_EACH, late_copies=late) as gpu:
        layers = build_layers(rank.case, rank.inputs)
        handed = list(nn.Sequential(*layers).parameters())
        model = _made(rank, layers)
        kept = {id(parameter) for parameter in model.parameters()}
        rank.fact("replaced", sum(id(parameter) not in kept for parameter in handed))
        yield model, layers, gpu


def _made(rank: Rank, layers: Sequence[nn.Module]) -> nn.Module:
    return rank.student.OffloadedModel(layers, torch.device("cuda:0"), rank.params["resident"])


def use_offloaded_model(rank: Rank, late: bool = False) -> None:
    """Report every value the plain model has too. late: copies arrive some time after they are asked for."""
    with _model_on_device(rank, late) as (model, _, gpu):
        compare(OnDevices(rank, gpu), model, rank.inputs)


def use_two_batches(rank: Rank) -> None:
    """Two forward passes, and one backward through both. Answers: grad.N."""
    with _model_on_device(rank) as (model, _, _):
        add_two_batches(rank, model, rank.inputs)


def ask_for_impossible_residents(rank: Rank) -> None:
    """A number of resident layers that cannot be. Fact: refusal."""
    with devices.stand_in(1, BYTES_EACH), rank.expect_error("refusal"):
        _made(rank, build_layers(rank.case, rank.inputs))


def watch_offloaded_model(rank: Rank) -> None:
    """Report memory and copies."""
    with _model_on_device(rank) as (model, layers, gpu):
        rank.fact("held at rest", gpu.allocated(0))
        _watch(rank, model, layers, gpu)


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
    return [[t.source, t.destination, t.num_bytes, t.stream, t.non_blocking, t.pinned] for t in transfers]


class Watched(BesidePlain):
    """A case's answers, and the bytes its layers need."""

    @cached_property
    def sizes(self) -> Sizes:
        return Sizes(self.case, self.inputs)


def _run(on_rank: Callable[[Rank], None]) -> Run:
    return Run(on_rank, draw_layer_inputs, evidence=Watched)


RUNS = {
    **dict.fromkeys(("values", "buffers", "dropout", "extreme"), _run(use_offloaded_model)),
    "two-batches": Run(use_two_batches, draw_layer_inputs, evidence=BesideTwoBatches),
    "late": _run(partial(use_offloaded_model, late=True)),
    "watched": _run(watch_offloaded_model),
    "refusal": _run(ask_for_impossible_residents),
}


# -- judges


def on_the_device(evidence: Watched) -> Iterator[Finding]:
    """The output is where the layers work."""
    device = evidence.answers[0].facts["output device"]
    yield Finding(device == "cuda:0", "the output on cuda:0", f"on {device}")


def parameters_stay(evidence: Watched) -> Iterator[Finding]:
    """The model has the very parameters that it was handed."""
    replaced = evidence.answers[0].facts["replaced"]
    told = "every parameter the object it was, as an optimizer has it"
    yield Finding(replaced == 0, told, f"{replaced} replaced by others")


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
        self.pair = 2 * max(offloaded) if len(offloaded) > 1 else sum(offloaded)  # as two buffers hold them
        self.slack = max(offloaded, default=0) // 2

    def offloaded(self, upto: int | None = None) -> int:
        """Bytes of the weights of the offloaded layers, up to layer `upto` where one is given."""
        stop = len(self.plain) if upto is None else upto + 1
        return sum(self.plain[self.resident : stop])


def stays_in_bounds(evidence: Watched) -> Iterator[Finding]:
    """Resident layers are there all the time; beside them there is never more than the bound allows."""
    sizes, facts = evidence.sizes, evidence.answers[0].facts
    at_rest, spare = sizes.at_rest, sizes.pair + sizes.slack
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
    }
    for moment, (what, beside) in moments.items():
        seen, most = facts[moment], at_rest + beside
        told = f"{moment}: {at_rest:,} to {most:,} bytes ({what})"
        yield Finding(at_rest <= seen <= most, told, f"{moment}: {seen:,} bytes")


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
    back = sum(size for a, _, size, *_ in answer.facts["backward"] if a == "cuda:0")
    told = f"backward: the gradients of the offloaded layers copied to the host once, {once:,} bytes"
    yield Finding(back == once, told, f"{back:,} bytes")


def _to_device(answer: RankAnswer, phase: str, count: int | None = None) -> int:
    return sum(size for _, b, size, *_ in answer.facts[phase][:count] if b == "cuda:0")


def fetches_ahead(evidence: Watched) -> Iterator[Finding]:
    """When a layer starts, the next one's weights are on their way, beside the work: those of the first
    offloaded layer when the last resident one starts.
    """
    sizes, answer = evidence.sizes, evidence.answers[0]
    last = len(sizes.plain) - 1
    for index, count in answer.facts["starts"]:
        if not sizes.resident - 1 <= index < last:
            continue
        asked = _to_device(answer, "inference", count) - sizes.x
        due = sizes.offloaded(upto=index + 1)
        told = f"when layer {index} starts, the weights of layer {index + 1} are on their way: {due:,} bytes"
        yield Finding(asked >= due, told, f"{asked:,} bytes asked for by then")
    ran = [index for index, _ in answer.facts["starts"]]
    yield Finding(ran == list(range(last + 1)), "each layer run once, in order", f"layers {ran} run")
    weights = [copy for copy in answer.facts["inference"] if copy[1] == "cuda:0"]
    weights.remove(next(copy for copy in weights if copy[2] == sizes.x))
    aside = all(stream != 0 and non_blocking for *_, stream, non_blocking, _ in weights)
    told = "weights copied with non_blocking=True on a stream of their own"
    yield Finding(aside, told, "copies on the default stream, or copies the host waits for")
    pinned = sum(size for _, _, size, *_, is_pinned in weights if is_pinned)
    told = f"all {sum(copy[2] for copy in weights):,} bytes copied from pinned memory"
    yield Finding(all(is_pinned for *_, is_pinned in weights), told, f"{pinned:,} bytes")


def offload_case(
    name: str, kind: str, layers: Specs, resident: int, lead: list[int], seed: int, **params: Any
) -> Case:
    """`layers` on one device, of which the first `resident` stay there."""
    return Case(name, 1, {"layers": layers, "resident": resident, "lead": lead, **params}, seed, kind=kind)


def wide_layers(width: int, num_layers: int) -> Specs:
    """Layers whose weights are much larger than what flows through them."""
    return [["dense", width, width] for _ in range(num_layers)]


def with_buffers(layers: Specs) -> Specs:
    """The same layers, with a constant buffer in each that is dense."""
    return [["scaled", *sizes] if kind == "dense" else [kind, *sizes] for kind, *sizes in layers]


def with_dropout(layers: Specs) -> Specs:
    """The same layers, each with dropout behind it."""
    return [spec for layer in layers for spec in (layer, ["dropout", 0.4])]


def _offload_cases(seed: int) -> list[Case]:
    wide = wide_layers(64, 6)
    return [
        offload_case("2 of 5 resident", "values", SMALL, 2, [3], seed),
        offload_case("1 of 5 resident", "values", SMALL, 1, [2, 3], seed, frozen=["0.bias", "3.weight"]),
        offload_case("memory, 2 of 6 resident", "watched", wide, 2, [1], seed),
        offload_case("memory, none of 6 resident", "watched", wide, 0, [1], seed),
        offload_case("memory, 5 of 6 resident", "watched", wide, 5, [1], seed),
        offload_case("copies that take their time", "late", SMALL, 1, [3], seed),
        offload_case("constant buffers", "buffers", with_buffers(SMALL), 2, [3], seed),
        offload_case("dropout", "dropout", with_dropout(SMALL), 2, [3], seed),
        offload_case("two batches, one backward", "two-batches", SMALL, 2, [3], seed),
        offload_case("none resident", "extreme", SMALL, 0, [3], seed),
        offload_case("all resident", "extreme", SMALL, 5, [3], seed),
        offload_case("9 of 5 resident", "refusal", SMALL, 9, [3], seed, names=["9", "5"]),
        offload_case("-1 of 5 resident", "refusal", SMALL, -1, [3], seed, names=["-1", "5"]),
    ]


EXERCISE = Exercise(
    "02.offloaded-model",
    "Weights that come just in time",
    ("OffloadedModel",),
    RUNS,
    _offload_cases,
    (
        Property(
            "forward-values",
            "numbers",
            1,
            "The output is that of the plain model, on the device.",
            "an offloaded layer was left out, or run with the wrong layer's weights",
            {"values": every(equals("output"), on_the_device)},
        ),
        Property(
            "gradients",
            "numbers",
            2,
            "Every parameter, on the host or on the device, gets the plain model's gradient.",
            "the copy on the device has the gradient, and the parameter on the host never hears of it",
            {"values": equals("input_grad", "grad")},
        ),
        Property(
            "trained-weights",
            "numbers",
            1,
            "After two steps of SGD every weight is what it would be in the plain model.",
            "copies fetched before the optimizer's step were used after it",
            {"values": every(equals("trained"), parameters_stay)},
        ),
        Property(
            "peak-memory",
            "mechanism",
            6,
            "The device never holds more than the resident layers, the layer at work and the one on its way.",
            "autograd keeps every layer's weights for backward, or the copies are never dropped",
            {"watched": stays_in_bounds},
        ),
        Property(
            "weights-fetched",
            "mechanism",
            2,
            "Offloaded weights come to the device once a pass, and their gradients leave it once.",
            "the layers run on the CPU, or all layers are fetched whether they are resident or not",
            {"watched": fetches_once},
        ),
        Property(
            "prefetch",
            "mechanism",
            6,
            "While a layer works, the weights of the next are on their way, on a stream of their own.",
            "each layer fetches its own weights when it starts, the last resident one fetches nothing, or the"
            " copy is not non_blocking or not from pinned memory",
            {"watched": fetches_ahead},
        ),
        Property(
            "waits-for-copies",
            "mechanism",
            6,
            "A layer starts when its weights have arrived, and not before.",
            "no wait_stream or wait_event between the stream of the copies and the one that computes",
            {"late": equals("output", "grad", "trained")},
        ),
        Property(
            "buffers",
            "robustness",
            1,
            "Constant buffers of offloaded layers are on the device when their layer works.",
            "only parameters are fetched",
            {"buffers": equals("output", "grad", "trained")},
        ),
        Property(
            "dropout",
            "robustness",
            1,
            "Dropout strikes in backward where it struck in forward.",
            "a layer that runs again draws other random numbers: checkpoint(..., preserve_rng_state=False)",
            {"dropout": equals("output", "input_grad", "grad", "trained")},
        ),
        Property(
            "two-batches",
            "robustness",
            1,
            "Several forward passes may come before their backward.",
            "what a forward leaves in the model for its backward is overwritten by the next one",
            {"two-batches": equals("grad")},
        ),
        Property(
            "all-or-none",
            "robustness",
            1,
            "No layer resident, and all of them resident, work too.",
            "an index that assumes there is a layer to prefetch",
            {"extreme": equals("output", "grad", "trained")},
        ),
        Property(
            "wrong-arguments",
            "robustness",
            1,
            "A number of resident layers that cannot be is refused with a ValueError that names it.",
            "a negative number is a slice from the end",
            {"refusal": is_refused("refusal", "ValueError", names=named)},
        ),
    ),
)
