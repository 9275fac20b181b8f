"""A model whose layers live on several devices: what its check does with it, and how that is judged."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit import devices
from labkit.checks.case import Case, Inputs
from labkit.checks.exercise import Exercise, Finding, Judge, Property, Run, every
from labkit.checks.lesson_02.crossings import AFTERWARDS, Passes, crosses_once, works_where_told
from labkit.checks.lesson_02.failing import fail
from labkit.checks.lesson_02.plain_model import (
    INFERENCE,
    BesideGraph,
    BesidePlain,
    batches_of,
    compare,
    equals,
    error_of,
    follow_graph,
)
from labkit.checks.lesson_02.small_layers import (
    IDS,
    NARROW,
    SMALL,
    Specs,
    build_layers,
    draw_layer_inputs,
    named,
    to_hand_over,
)
from labkit.checks.rank import Rank
from labkit.checks.shared.beside import LEARNING_RATE, is_refused, nbytes

BYTES_EACH = 2**20
BUFFERED: Specs = [["scaled", 5, 4], ["counting", 4], ["dense", 4, 6], ["scaled", 6, 3], ["counting", 3]]
TIED: Specs = [["dense", 6, 4], ["dense", 4, 4], ["tied", 0]]
TIED_AFAR: Specs = [*TIED, ["dense", 6, 4], ["tied", 0], ["dense", 6, 4], ["tied", 5]]
MIRRORED: Specs = [["dense", 6, 4], ["dense", 4, 4], ["mirrored", 0, "dense"], ["dense", 4, 3]]
MIRRORED_BUFFER: Specs = [["dense", 6, 4], ["dense", 4, 4], ["mirrored", 0, "scaled"], ["dense", 4, 3]]
TWICE: Specs = [["dense", 5, 4], ["dense", 4, 4], ["dense", 4, 4], ["again", 1]]


class OnDevices:
    """A rank as a seat where what is recorded are the copies between its devices."""

    def __init__(self, rank: Rank, gpus: devices.StandIns) -> None:
        self.rank, self.gpus = rank, gpus

    def answer(self, name: str, tensor: Tensor | None) -> None:
        if name in ("output", "evaluated") and tensor is not None:
            self.rank.fact(f"{name} device", str(tensor.device))
        self.rank.answer(name, tensor)

    @contextlib.contextmanager
    def recording(self, name: str) -> Iterator[None]:
        with self.gpus.recording() as copies:
            yield
        self.rank.fact(name, [[t.source, t.destination, t.num_bytes] for t in copies])

    def attempt(self, property_name: str) -> contextlib.AbstractContextManager[object]:
        return self.rank.attempt(property_name)


class InARow(OnDevices):
    """The same where each of several passes under a name is kept, with what the layers do in it."""

    def __init__(self, rank: Rank, gpus: devices.StandIns, layers: Sequence[nn.Module]) -> None:
        super().__init__(rank, gpus)
        self._passes = Passes(rank, gpus, layers)

    @contextlib.contextmanager
    def recording(self, name: str) -> Iterator[None]:
        with self._passes.noting(name):
            yield


@contextlib.contextmanager
def _stand_ins(rank: Rank) -> Iterator[devices.StandIns]:
    """As many stand-in devices as the case's layers are spread over."""
    with devices.stand_in(max(map(_index, rank.params["devices"])) + 1, BYTES_EACH) as gpus:
        yield gpus


def _made(rank: Rank, layers: list[nn.Module]) -> nn.Module:
    names = rank.params["devices"]
    told = names if rank.params.get("by_name") else [torch.device(name) for name in names]
    return rank.student.LayerwiseModel(to_hand_over(rank.case, layers), told)


def use_layerwise_model(rank: Rank) -> None:
    """Build the student's model on stand-in devices, run it both ways, train it, and report."""
    with _stand_ins(rank) as gpus:
        layers = build_layers(rank.case, rank.inputs)
        model = _made(rank, layers)
        _tell_places(rank, model)
        rank.fact("held before", [gpus.allocated(k) for k in range(len(gpus.devices))])
        seat, thawed = InARow(rank, gpus, layers), rank.params.get("thawed", ())
        if rank.case.kind == "tied":
            before = _objects(layers)
            fail(model, layers[rank.params.get("fails", -1)], rank.inputs["x"])
            rank.fact("replaced", sum(a != b for a, b in zip(before, _objects(layers), strict=True)))
        compare(seat, model, rank.inputs, rank.params.get("x_on", "cpu"), thawed)
        follow_graph(seat, model, rank.inputs)
        model.zero_grad()
        gc.collect()
        rank.fact("held after", [gpus.allocated(k) for k in range(len(gpus.devices))])
        model.eval()
        with torch.no_grad(), seat.recording(AFTERWARDS):
            model(rank.inputs["x"].clone())
        gc.collect()
        rank.fact("held after inference", [gpus.allocated(k) for k in range(len(gpus.devices))])


def make_layerwise_model(rank: Rank) -> None:
    """Build the student's model and report where its tensors are."""
    with _stand_ins(rank):
        _tell_places(rank, _made(rank, build_layers(rank.case, rank.inputs)))


def _tell_places(rank: Rank, model: nn.Module) -> None:
    rank.fact("parameters", [str(p.device) for p in model.parameters()])
    rank.fact("buffers", [str(b.device) for b in model.buffers()])


def _objects(layers: Sequence[nn.Module]) -> list[int]:
    """Which object each parameter of each layer is."""
    return [id(p) for layer in layers for _, p in layer.named_parameters(remove_duplicate=False)]


def train_with_an_earlier_optimizer(rank: Rank) -> None:
    """The optimizer is made before the model is: its parameters must be the model's."""
    with _stand_ins(rank):
        layers = build_layers(rank.case, rank.inputs)
        optimizer = torch.optim.SGD(nn.Sequential(*layers).parameters(), lr=LEARNING_RATE)
        model = _made(rank, layers)
        for batch in batches_of(rank.inputs):
            optimizer.zero_grad()
            error_of(model, batch).backward()
            optimizer.step()
        for number, parameter in enumerate(model.parameters()):
            rank.answer(f"trained.{number}", parameter)


def ask_for_too_few_devices(rank: Rank) -> None:
    """Another number of devices than layers. Fact: refusal."""
    with _stand_ins(rank), rank.expect_error("refusal"):
        _made(rank, build_layers(rank.case, rank.inputs))


def _run(on_rank: Any) -> Run:
    return Run(on_rank, draw_layer_inputs, evidence=BesideGraph)


RUNS = {
    **dict.fromkeys(("values", "buffers", "tied", "ids", "types", "places"), _run(use_layerwise_model)),
    "made": _run(make_layerwise_model),
    "optimizer-before": _run(train_with_an_earlier_optimizer),
    "refusal": _run(ask_for_too_few_devices),
}


# -- judges


def on_own_devices(kind: str) -> Judge:
    """The tensors of a kind ("parameters" or "buffers") are where their layers should be."""

    def judge(evidence: BesidePlain) -> Iterator[Finding]:
        case, seen = evidence.case, evidence.answers[0].facts[kind]
        placed = zip(build_layers(case, evidence.inputs), case.params["devices"], strict=True)
        expected = [device for layer, device in placed for _ in getattr(layer, kind)()]
        yield Finding(seen == expected, f"{kind} on {', '.join(expected)}", f"{kind} on {', '.join(seen)}")

    return judge


def holds_its_layers(evidence: BesidePlain) -> Iterator[Finding]:
    """Each device holds its layers and nothing more, before the first pass and after the last, in evaluation
    too.
    """
    shares = _shares(evidence.case, evidence.inputs)
    moments = {
        "before": "before the first pass",
        "after": "once passes and gradients are gone",
        "after inference": "after a pass in evaluation, without gradients",
    }
    for when, what in moments.items():
        for index, held in enumerate(evidence.answers[0].facts[f"held {when}"]):
            share = shares[f"cuda:{index}"]
            told = f"cuda:{index} holds its layers and nothing more {what}: {share:,} bytes"
            yield Finding(held == share, told, f"{held:,} bytes")


def _shares(case: Case, inputs: Inputs) -> Counter[str]:
    """Bytes of the layers of each device. What layers share counts where the first of them lives."""
    shares, settled = Counter[str](), set[int]()
    for layer, name in zip(build_layers(case, inputs), case.params["devices"], strict=True):
        for tensor in (*layer.parameters(), *layer.buffers()):
            if id(tensor) not in settled:
                settled.add(id(tensor))
                shares[name] += devices.rounded(nbytes(tensor))
    return shares


def survives_a_failure(evidence: BesidePlain) -> Iterator[Finding]:
    """A pass that failed left every parameter the object it was."""
    replaced = evidence.answers[0].facts["replaced"]
    told = "every parameter the object it was, after a pass that failed"
    yield Finding(replaced == 0, told, f"{replaced} replaced by others")


def _index(name: str) -> int:
    return int(name.partition(":")[2] or -1)


def _name(place: int) -> str:
    return "cpu" if place < 0 else f"cuda:{place}"


def layerwise_case(
    name: str, kind: str, layers: Specs, places: list[int], lead: list[int], seed: int, **params: Any
) -> Case:
    """`layers` on devices cuda:places[i], the host for -1; x is [*lead, inputs of the first layer]. in_tuple:
    the layers are handed over in a tuple.
    """
    given = {"layers": layers, "devices": [_name(place) for place in places], "lead": lead, **params}
    return Case(name, 1, given, seed, kind=kind)


def _layerwise_cases(seed: int) -> list[Case]:
    return [
        layerwise_case("2 devices", "values", SMALL, [0, 0, 0, 1, 1], [3], seed, alike={"3.bias": "2.bias"}),
        layerwise_case(
            "3 devices",
            "values",
            SMALL,
            [0, 1, 1, 1, 2],
            [2, 3],
            seed,
            frozen=["1.weight"],
            resting=[1],
            thawed=[2],
        ),
        layerwise_case("1 device", "values", SMALL[:2], [0, 0], [4], seed),
        layerwise_case("weights of two types", "types", NARROW, [0, 1, 0, 1], [3], seed),
        layerwise_case("the host among them", "places", SMALL, [0, -1, -1, 1, 1], [3], seed, by_name=True),
        layerwise_case(
            "x on a device", "values", SMALL, [0, 0, 1, 1, 1], [3], seed, x_on="cuda:1", dtype="bfloat16"
        ),
        layerwise_case("whole numbers", "ids", IDS, [0, 1, 1], [2, 3], seed),
        layerwise_case("running means", "buffers", BUFFERED, [0, 0, 0, 1, 1], [3], seed),
        layerwise_case("a constant beside a tie", "made", MIRRORED_BUFFER, [0, 0, 1, 1], [3], seed),
        layerwise_case("tied, 2 devices", "tied", TIED, [0, 0, 1], [3], seed),
        layerwise_case("tied, 1 device", "tied", TIED, [0, 0, 0], [3], seed),
        layerwise_case("tied, 2 devices and the host", "tied", TIED_AFAR, [-1, 0, 0, 1, 1, 1, -1], [3], seed),
        layerwise_case(
            "tied under two names, frozen at first",
            "tied",
            MIRRORED,
            [0, 0, 1, 1],
            [3],
            seed,
            frozen=["0.weight"],
            thawed=[0],
            fails=2,
        ),
        layerwise_case("one layer twice", "tied", TWICE, [0, 0, 1, 1], [3], seed),
        layerwise_case("optimizer made first", "optimizer-before", SMALL, [0, 0, 1, 1, 2], [3], seed),
        layerwise_case("2 devices for 5 layers", "refusal", SMALL, [0, 1], [3], seed, names=["5", "2"]),
    ]


PLACED: Judge = every(on_own_devices("parameters"), holds_its_layers)
CROSSES: Judge = every(crosses_once, works_where_told)


EXERCISE = Exercise(
    "02.layerwise-model",
    "A model over several devices",
    ("LayerwiseModel",),
    RUNS,
    _layerwise_cases,
    (
        Property(
            "forward-values",
            "numbers",
            2,
            "The output is that of the same layers on one device, after eval() and under no_grad too; x stays"
            " as it is.",
            "a layer left out or run twice, or activations that were changed on the way",
            dict.fromkeys(("values", "ids", "types"), equals("output", *INFERENCE)),
        ),
        Property(
            "gradients",
            "numbers",
            3,
            "The gradients of the input and of every parameter are those of one device, after eval() too.",
            "an activation moved with .detach(), .data or through NumPy: the gradient stops there",
            {
                "values": equals("input_grad", "grad", "evaluated_grad"),
                "ids": equals("grad", "evaluated_grad"),
            },
        ),
        Property(
            "trained-weights",
            "numbers",
            2,
            "After two steps of SGD every weight is what it would be on one device.",
            "parameters that model.parameters() does not list: layers kept in a plain Python list",
            {"values": equals("trained")},
        ),
        Property(
            "placement",
            "mechanism",
            6,
            "Each device holds its own layers, parameters and buffers, and not a byte more; a pass leaves"
            " gradients alone.",
            "all layers on the first device, a second copy kept on another, or activations kept",
            {"values": PLACED},
            dict.fromkeys(("ids", "types", "places", "buffers"), PLACED),
        ),
        Property(
            "boundary-crossings",
            "mechanism",
            5,
            "Activations cross once where the device changes, and nowhere else; gradients the same way back.",
            "going through the CPU, or back to the first device after every layer",
            {"values": CROSSES},
            dict.fromkeys(("ids", "types", "places", "buffers"), CROSSES),
        ),
        Property(
            "any-device",
            "robustness",
            1,
            "Devices may be given by name, and the host may be one of them.",
            "device.index, or .cuda(), where .to(device) takes any",
            {"places": equals("output", "input_grad", "grad", "trained")},
        ),
        Property(
            "buffers-move",
            "robustness",
            1,
            "Buffers are on their layer's device, and what a layer writes into them is kept.",
            "moving only layer.parameters()",
            {
                "buffers": every(equals("output", "buffer"), on_own_devices("buffers")),
                "made": on_own_devices("buffers"),
            },
        ),
        Property(
            "tied-parameters",
            "robustness",
            2,
            "A parameter that two layers on different devices share stays one, with one gradient; copies go.",
            ".to() moves the shared parameter to the later layer's device, a copy of it goes its own way, or"
            " outlives its pass",
            {
                "tied": every(
                    equals("output", "input_grad", "grad", "evaluated_grad", "trained", "through"),
                    holds_its_layers,
                    survives_a_failure,
                    works_where_told,
                )
            },
        ),
        Property(
            "earlier-optimizer",
            "robustness",
            1,
            "An optimizer made before the model was moved still trains it.",
            "new nn.Parameter objects, or copies of the layers: the optimizer has the old ones",
            {"optimizer-before": equals("trained")},
        ),
        Property(
            "wrong-arguments",
            "robustness",
            1,
            "Another number of devices than layers is refused with a ValueError that names both.",
            "zip() stops at the shorter of the two without a word",
            {"refusal": is_refused("refusal", "ValueError", names=named)},
        ),
    ),
)
